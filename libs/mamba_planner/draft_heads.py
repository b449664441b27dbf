"""Which models have heads for drafts that engines can use, and what such a head adds to a model. Pure.

`plan_engine` and the boot of an engine call it, so that plan and engine count the same layers.
"""

from dataclasses import replace

from mamba_api.choices import Speculation
from mamba_planner.arithmetic import head_parameters
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import ModelConfig

FAMILIES = ("nemotron_h", "qwen3_next", "qwen3_5")
"""Families whose published heads engines can use."""


def with_heads(model: ModelConfig, speculation: Speculation) -> ModelConfig:
    """Return the model as an engine with these drafts runs it: with its head if that drafts.

    Raises `UnusableInput` if the family has no head that engines can use.
    """
    if speculation != "mtp" or model.draft_head:
        return model
    if model.family not in FAMILIES or model.attention is None:
        raise UnusableInput(
            f"speculation mtp is refused for {model.family} models: this version reads the heads of "
            "Nemotron 3, Qwen3-Next and Qwen3.5; use ngram or auto"
        )
    return replace(model, draft_head=True, parameters=model.parameters + head_parameters(model))
