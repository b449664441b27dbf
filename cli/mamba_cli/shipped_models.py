"""The models that ship with the package, as far as they are known without loading one.

`mambaserve operator` hands this to the operator, which knows nothing of the server's files.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.model.checkpoint.source import resolve


@lru_cache(maxsize=16)
def shipped_config(uri: str) -> Mapping[str, Any] | None:
    """config.json of the model at `builtin://NAME`; None when this version ships none of that name."""
    try:
        data = json.loads((resolve(uri) / "config.json").read_text())
    except (ModelError, OSError, ValueError):
        # The engine's image may ship a model that this one does not: its engine will tell.
        return None
    return data if isinstance(data, dict) else None
