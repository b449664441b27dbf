"""`AdapterUpdate` and `AdapterOutcome`: adapters that one engine is to serve, and whether it does. Pure data.

`adapter_rollout` decides the updates, `AdapterUpdates` carries them out, and conditions show the outcomes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mamba_operator.render.live_settings import EngineUpdate


@dataclass(frozen=True, slots=True)
class AdapterUpdate(EngineUpdate):
    """Tells the operator which adapters one engine has to serve; `settings` is a hash of them."""

    adapters: Mapping[str, str] = field(hash=False)
    """URI by name."""


@dataclass(frozen=True, slots=True)
class AdapterOutcome:
    """The result of the last attempt to give an engine its adapters."""

    settings: str
    """Hash of the adapters."""
    message: str = ""
    """Why the engine does not serve them yet; "" = it serves them."""
    refused: bool = False
    """Whether the engine refused an adapter; False = it gave no answer, or needs more time."""
