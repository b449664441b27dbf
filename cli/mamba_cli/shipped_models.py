"""`shipped_config`: the configurations of the models that ship with the package.

`mambaserve operator` passes the function to the operator, which does not import the server.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.model.checkpoint.source import resolve


@lru_cache(maxsize=16)
def shipped_config(uri: str) -> Mapping[str, Any] | None:
    """Return config.json of the model at `builtin://NAME`; None when this version ships no such model."""
    try:
        data = json.loads((resolve(uri) / "config.json").read_text())
    except (ModelError, OSError, ValueError):
        # The image of the engine can ship other models than this version; then the engine decides.
        return None
    return data if isinstance(data, dict) else None
