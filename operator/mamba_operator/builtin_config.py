"""The configuration of a model that ships with the package: the one kind known without any engine.

Called by `observe`; reads a file of the package and nothing of the cluster.
"""

import json
from functools import lru_cache
from typing import Any

from mamba_operator.manifest import Manifest
from mamba_server.model.errors import ModelError
from mamba_server.model.source import resolve

SCHEME = "builtin://"


def builtin_config(owner: Manifest) -> dict[str, Any] | None:
    """config.json of the object's model, if that is a shipped one; None otherwise, also for broken specs."""
    spec = owner.get("spec")
    model = spec.get("model") if isinstance(spec, dict) else None
    uri = model.get("uri") if isinstance(model, dict) else None
    return _read(uri) if isinstance(uri, str) and uri.startswith(SCHEME) else None


@lru_cache(maxsize=16)
def _read(uri: str) -> dict[str, Any] | None:
    try:
        data = json.loads((resolve(uri) / "config.json").read_text())
    except (ModelError, OSError, ValueError):
        # The engine's image may ship a model that this one does not: its engine will tell.
        return None
    return data if isinstance(data, dict) else None
