"""Which models have heads for drafts that engines can use, and what such a head adds to a model. Pure.

`plan_engine` and the boot of an engine call it, so that plan and engine count the same layers.
"""

from dataclasses import replace
from typing import Literal

from mamba_planner.arithmetic import WeightsSize, head_parameters
from mamba_planner.draft_models import draft_model_of
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import LayerKind, ModelConfig
from mamba_settings.engine_settings import EngineSettings

DeviceKind = Literal["cuda", "cpu"]
FAMILIES = ("nemotron_h", "qwen3_next", "qwen3_5")
"""Families whose published heads engines can use."""


def with_heads(model: ModelConfig, speculation: str | None, *, auto: bool = False) -> ModelConfig:
    """Return the model as an engine with `speculation` runs it: with its head if the head drafts.

    None counts as off; `auto` says whether the head drafts if speculation is auto. Raises `UnusableInput` if
    the family has no head that engines can use.
    """
    uses_head = speculation == "mtp" or (speculation == "auto" and auto)
    if not uses_head or model.draft_head:
        return model
    if not _readable(model):
        raise UnusableInput(
            f"speculation mtp is refused for {model.family} models: this version reads the heads of "
            "Nemotron 3, Qwen3-Next and Qwen3.5; use ngram or auto"
        )
    return replace(model, draft_head=True, parameters=model.parameters + head_parameters(model))


def forms_of(model: ModelConfig) -> tuple[ModelConfig, ...]:
    """Return the model as engines may run it: without its head, and with it if the family has one."""
    return (model, with_heads(model, "mtp")) if _readable(model) else (model,)


def auto_uses_head(model: ModelConfig, settings: EngineSettings, device: DeviceKind) -> bool:
    """Return whether an engine on `device` with speculation auto drafts with the model's own head.

    It does on CPUs alone, where such a head was measured to save more time than it takes, and only if the
    configuration names the head, since sizes of files do not tell whether there is one. An engine with
    adapters does not use the head, nor does an engine of a pool: the head's layer of pages would travel with
    each state, which was measured to cost a decode engine more than the head saves.
    """
    is_alone = settings.role == "unified" and not settings.lora_places
    return model.has_head and device == "cpu" and is_alone and _readable(model)


def _readable(model: ModelConfig) -> bool:
    return model.family in FAMILIES and model.attention is not None


def head_bytes(model: ModelConfig, settings: EngineSettings) -> int:
    """Return the bytes in memory of the weights of the model's head, which `WeightsSize` does not count."""
    attention = model.attention
    norms = 5 * model.hidden_size
    if attention is not None and attention.qk_norm:
        norms += 2 * attention.head_dim
    parameters = head_parameters(model)
    size = WeightsSize(0, parameters, parameters - norms)
    dtype = model.dtype if settings.dtype == "auto" else settings.dtype
    # The head has one layer and no matrix of the vocabulary, which int4 and fp8 leave out.
    layers: tuple[LayerKind, ...] = ("attention", "mlp" if model.moe is None else "moe")
    return size.loaded(replace(model, vocab_size=0, layers=layers), dtype, settings.quantization)


def planned_model(
    model: ModelConfig, settings: EngineSettings, weights_bytes: int | None, device: DeviceKind
) -> tuple[ModelConfig, int | None]:
    """Return the model as an engine with these settings runs it, and the bytes of its weights.

    None = the bytes are not known. Raises `UnusableInput` as `with_heads` and `draft_model_of`.
    """
    planned = with_heads(model, settings.speculation, auto=auto_uses_head(model, settings, device))
    draft = draft_model_of(planned, settings.draft_model)
    if draft is not planned.draft_model:
        planned = replace(planned, draft_model=draft)
    if planned.draft_head and not model.draft_head and weights_bytes is not None:
        weights_bytes += head_bytes(model, settings)
    return planned, weights_bytes


def without_drafts(
    model: ModelConfig, settings: EngineSettings, weights_bytes: int | None
) -> tuple[ModelConfig, int | None]:
    """Return the model without its head for drafts and its draft model, and the bytes of its weights.

    `model` and `weights_bytes` are those that `planned_model` returned. None = the bytes are not known.
    """
    plain = replace(model, draft_head=False, draft_model=None)
    if model.draft_head:
        plain = replace(plain, parameters=model.parameters - head_parameters(model))
        if weights_bytes is not None:
            weights_bytes -= head_bytes(model, settings)
    return plain, weights_bytes
