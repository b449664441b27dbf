"""Configurations of models for tests."""

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


def unserved_config() -> dict[str, Any]:
    """Return the configuration of a model that is planned but not served: gelu follows its convolutions."""
    config: dict[str, Any] = json.loads((CONFIGS / "falcon-h1-7b.json").read_text())
    return {**config, "hidden_act": "gelu"}
