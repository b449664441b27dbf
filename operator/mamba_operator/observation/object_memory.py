"""`ObjectMemory`: the state that the process keeps of one MambaDeployment between two passes.

Held by `reconcile`, which drops it when the object is gone. An operator that starts with none of it does more
work and nothing different.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mamba_operator.rollout.engine_history import EngineHistory


@dataclass(slots=True)
class ObjectMemory:
    """Facts about one MambaDeployment that no object in the cluster records."""

    listed: bool = False
    """Whether this process has listed, or created, the object's children."""
    stale: bool = False
    """Whether the indices may be out of date: the next pass reads everything from the cluster."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.accepted`."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date`."""
    sent_settings: dict[str, str] = field(default_factory=dict)
    """Value of `Snapshot.sent_settings`."""
    engine_history: EngineHistory = field(default_factory=EngineHistory)
    """Times since when engines fail or stand still."""
    written_version: str | None = None
    """Version of the object for which the last status was written."""
    refused_version: str | None = None
    """Version of the object for which the API server refused the status."""
