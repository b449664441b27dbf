"""Registry of adapters: the only way from a Hugging Face `config.json` to a `ModelConfig`.

Engine, planner and operator call it. Torch-free; reads at most one small file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mamba_planner.families import (
    bamba,
    falcon_h1,
    granitemoehybrid,
    mamba2,
    nemotron_h,
    qwen3_next,
)
from mamba_planner.families.blocks import QUANTIZATION
from mamba_planner.families.errors import UnknownArchitecture, UnreadableConfig
from mamba_planner.families.fields import Fields
from mamba_planner.families.parameters import count_parameters
from mamba_planner.model_config import ModelConfig

FAMILIES: dict[str, tuple[str, Callable[[Fields, str], ModelConfig]]] = {
    "nemotron_h": ("NemotronHForCausalLM", nemotron_h.model_config),
    "bamba": ("BambaForCausalLM", bamba.model_config),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", granitemoehybrid.model_config),
    "falcon_h1": ("FalconH1ForCausalLM", falcon_h1.model_config),
    "mamba2": ("Mamba2ForCausalLM", mamba2.model_config),
    "qwen3_next": ("Qwen3NextForCausalLM", qwen3_next.model_config),
}

_INHERITED_FIELDS = ("dtype", "torch_dtype", "tie_word_embeddings", *QUANTIZATION)
"""Fields that a multimodal configuration has outside of its `text_config`."""


def model_config_from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read a configuration in today's or the published spelling.

    A multimodal configuration is read through its `text_config`. `source` opens every message. Raises the
    errors of `mamba_planner.families.errors`.
    """
    family = _family(config)
    if family is None and isinstance(nested := config.get("text_config"), Mapping):
        inherited = {key: config[key] for key in _INHERITED_FIELDS if key in config}
        config, source = {**inherited, **nested}, f"{source}: text_config"
        family = _family(config)
    if family is None:
        supported = ", ".join(f"{name} ({architecture})" for name, (architecture, _) in FAMILIES.items())
        raise UnknownArchitecture(
            source,
            f"model_type {config.get('model_type')!r} with architectures {config.get('architectures')!r} "
            f"is not supported; supported: {supported}",
            field="model_type",
        )
    architecture, adapter = FAMILIES[family]
    model = adapter(Fields(config, source), architecture)
    return replace(model, parameters=count_parameters(model))


def load_model_config(directory: Path) -> ModelConfig:
    """Read `directory/config.json`. Raises `UnreadableConfig` if there is none or it is not an object."""
    return model_config_from_hf(read_config(directory), str(directory / "config.json"))


def read_config(directory: Path) -> dict[str, Any]:
    """Return the raw object in `directory/config.json`."""
    path = directory / "config.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableConfig(
            str(path), "not found; a model directory holds config.json and *.safetensors"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UnreadableConfig(str(path), f"cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UnreadableConfig(str(path), "must hold a JSON object")
    return value


def _family(config: Mapping[str, Any]) -> str | None:
    if isinstance(model_type := config.get("model_type"), str) and model_type in FAMILIES:
        return model_type
    names = config.get("architectures")
    for family, (architecture, _) in FAMILIES.items():
        if architecture == names or (isinstance(names, list) and architecture in names):
            return family
    return None
