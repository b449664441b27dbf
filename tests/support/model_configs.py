"""Configurations of models for tests."""

import json
from pathlib import Path
from typing import Any

CONFIGS = Path(__file__).parents[1] / "golden" / "configs"


def unserved_config() -> dict[str, Any]:
    """Return the configuration of a model that can be planned but not served: its norm precedes the gate."""
    config: dict[str, Any] = json.loads((CONFIGS / "falcon-h1-7b.json").read_text())
    return {**config, "mamba_rms_norm": True, "mamba_norm_before_gate": True}
