"""Models whose shapes are measured.

Published configurations, shortened ones, and small ones for the interpreter. Free of torch.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import mamba_planner
from mamba_planner.families.registry import model_config_from_hf
from mamba_planner.model_config import LayerKind, ModelConfig

CONFIGS = Path(mamba_planner.__file__).parent / "published"
NANO = "nemotron-nano-9b-v2"
SMALLER = "granite-4.0-h-350m"
"""Measured where the card lacks the memory for `NANO`."""
FAMILIES = (NANO, "granite-4.0-h-tiny", "falcon-h1-7b", "qwen3-next-80b-a3b", SMALLER)
"""Models that between them have every mixer, every operator, and heads of 32, 64, 80, 128 and 256."""


def published(name: str, *, small: bool = False) -> ModelConfig:
    """Return the configuration as published; `small`: with little of everything."""
    config = model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()), f"{name}.json")
    return _small(config) if small else config


def shortened(config: ModelConfig, most: int) -> ModelConfig:
    """Return a model of the first `most` blocks of each kind of `config`, in their order."""
    seen: Counter[LayerKind] = Counter()
    kept = []
    for index, kind in enumerate(config.layers):
        seen[kind] += 1
        if seen[kind] <= most:
            kept.append(index)
    return replace(
        config,
        layers=tuple(config.layers[index] for index in kept),
        checkpoint_layers=tuple(
            config.checkpoint_layers[index] if config.checkpoint_layers else index for index in kept
        ),
    )


def _small(config: ModelConfig) -> ModelConfig:
    """Return the model with the least extents that the kernels' tiles take."""
    mamba, delta, attention, mlp, moe = (
        config.mamba, config.gated_delta, config.attention, config.mlp, config.moe,
    )  # fmt: skip
    groups = 1 if mamba is None else min(mamba.groups, 2)
    return replace(
        config,
        hidden_size=32,
        vocab_size=128,
        mamba=mamba and replace(mamba, heads=2 * groups, head_dim=16, state_size=16, groups=groups),
        gated_delta=delta and replace(delta, value_heads=2, key_heads=1, value_dim=16, key_dim=16),
        attention=attention and replace(attention, heads=4, kv_heads=2, head_dim=16, scale=0.25),
        mlp=mlp and replace(mlp, intermediate=32),
        moe=moe
        and replace(
            moe,
            experts=4,
            experts_per_token=2,
            intermediate=16,
            shared_intermediate=16 if moe.shared_intermediate else 0,
            groups=1,
            groups_per_token=1,
        ),
        eos_token_ids=(0,),
        max_position=1024,
    )
