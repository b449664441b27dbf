"""The configuration of a model that ships with the engines, which is known before any engine has started.

Called by `observe` with a reader that the process passes in; the operator reads no file of the engines.
"""

from collections.abc import Callable, Mapping
from typing import Any

from mamba_operator.objects.manifest import Manifest

SCHEME = "builtin://"

ShippedConfig = Callable[[str], Mapping[str, Any] | None]
"""Returns the config.json of the shipped model at a builtin:// URI; None when there is no such model."""


def nothing_shipped(_uri: str) -> None:
    """Return None: the reader of a process that ships no models."""


def builtin_config(owner: Manifest, read: ShippedConfig) -> Mapping[str, Any] | None:
    """Return the config.json of the object's model if that is a shipped one; None otherwise.

    An invalid spec has no shipped model.
    """
    spec = owner.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    uri = model.get("uri") if isinstance(model, dict) else None
    return read(uri) if isinstance(uri, str) and uri.startswith(SCHEME) else None
