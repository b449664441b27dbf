"""Registry of adapters: the only way from a Hugging Face `config.json` to a `ModelConfig`.

Engine, planner, operator and local mode call it. Torch-free; reads at most one small file. Every family that
the adapters read is served, but not every option of its configuration: models with other options can be
planned for, and `why_not_served` refuses them everywhere with the same words. The adapters are those of
families, which read configurations; LoRA adapters have nothing to do with them.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from mamba_planner.arithmetic import count_parameters
from mamba_planner.errors import UnknownArchitecture, UnreadableConfig
from mamba_planner.families import (
    bamba,
    falcon_h1,
    granitemoehybrid,
    kimi_linear,
    lfm2,
    mamba2,
    nemotron_h,
    olmo_hybrid,
    qwen3_5,
    qwen3_next,
    zamba2,
)
from mamba_planner.families.fields import Fields
from mamba_planner.families.quantization import QUANTIZATION, quantization_of
from mamba_planner.families.stored_matrices import stored_weights
from mamba_planner.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Adapter:
    """Reads the configurations of one `model_type`. It has nothing to do with LoRA adapters."""

    title: str
    """Name of the family for people."""
    architecture: str
    read: Callable[[Fields, str], ModelConfig]


ADAPTERS: dict[str, Adapter] = {
    "nemotron_h": Adapter(
        "Nemotron-H, Nemotron Nano v2, Nemotron 3 Nano and Super",
        "NemotronHForCausalLM",
        nemotron_h.model_config,
    ),
    "bamba": Adapter("Bamba", "BambaForCausalLM", bamba.model_config),
    "granitemoehybrid": Adapter(
        "Granite 4 hybrids", "GraniteMoeHybridForCausalLM", granitemoehybrid.model_config
    ),
    "falcon_h1": Adapter("Falcon-H1", "FalconH1ForCausalLM", falcon_h1.model_config),
    "mamba2": Adapter("Mamba2, Codestral Mamba", "Mamba2ForCausalLM", mamba2.model_config),
    "qwen3_next": Adapter("Qwen3-Next", "Qwen3NextForCausalLM", qwen3_next.model_config),
    "qwen3_5_text": Adapter("Qwen3.5, 3.6 and 3.8, dense", "Qwen3_5ForCausalLM", qwen3_5.model_config),
    "qwen3_5_moe_text": Adapter("Qwen3.5, 3.6 and 3.8 with experts", qwen3_5.MOE, qwen3_5.model_config),
    "lfm2": Adapter("LFM2 and LFM2.5, dense", "Lfm2ForCausalLM", lfm2.model_config),
    "lfm2_moe": Adapter("LFM2 and LFM2.5 with experts", "Lfm2MoeForCausalLM", lfm2.sparse_model_config),
    "kimi_linear": Adapter("Kimi-Linear", "KimiLinearForCausalLM", kimi_linear.model_config),
    "zamba2": Adapter("Zamba2", "Zamba2ForCausalLM", zamba2.model_config),
    "olmo_hybrid": Adapter("OLMo hybrid", "OlmoHybridForCausalLM", olmo_hybrid.model_config),
}
"""Adapters by `model_type`. Multimodal models are read through their `text_config`."""
MOST_LETTERS = 100
"""Longest part of an unknown name, in letters, that is compared with the names of served families."""
_HEADS = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Fields that count the heads for drafts of a checkpoint."""
_INHERITED_FIELDS = ("dtype", "torch_dtype", *QUANTIZATION)
"""Fields that a multimodal configuration has outside of its `text_config`, where that has none."""
_TIED = ("tie_embedding", "tie_word_embeddings")
"""Fields that say whether the output head is the embedding. In a multimodal configuration the outer ones
decide, since the head belongs to the whole model."""
_TIED_BY_DEFAULT = {"qwen3_5": False, "qwen3_5_moe": False, "lfm2_vl": True}
"""Whether the head is the embedding in multimodal models without such a field, by `model_type`; of others the
field of the text model decides."""


def model_config_from_hf(config: Mapping[str, Any], source: str = "config.json") -> ModelConfig:
    """Read a Hugging Face configuration, with the field names of its publication or of today.

    A multimodal configuration is read through its `text_config`. `source` opens every message. Raises a
    subclass of `ModelConfigError`.
    """
    family, nested = _family(config), config.get("text_config")
    if isinstance(nested, Mapping) and (family is None or _family(nested) is not None):
        inherited = {key: config[key] for key in _INHERITED_FIELDS if key in config}
        config, source = {**inherited, **nested, **_head(config)}, f"{source}: text_config"
        family = _family(config)
    if family is None:
        nearest = nearest_family(config)
        hint = f"the nearest served family is {nearest} ({ADAPTERS[nearest].title}); " if nearest else ""
        supported = ", ".join(f"{name} ({adapter.architecture})" for name, adapter in ADAPTERS.items())
        raise UnknownArchitecture(
            source,
            f"model_type {config.get('model_type')!r} with architectures {config.get('architectures')!r} "
            f"is not supported; {hint}supported: {supported}",
            field="model_type",
        )
    adapter = ADAPTERS[family]
    model = adapter.read(Fields(config, source), adapter.architecture)
    heads = any(_is_count(config.get(name)) for name in _HEADS)
    model = replace(model, parameters=count_parameters(model), has_head=heads)
    quantization = quantization_of(config)
    if quantization is None or quantization.is_fp8:
        return model
    return replace(model, stored=stored_weights(model, quantization))


def _head(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a multimodal configuration's fields of the output head; they replace those of its text model."""
    head = {key: config[key] for key in _TIED if config.get(key) is not None}
    if not head and (tied := _TIED_BY_DEFAULT.get(str(config.get("model_type")))) is not None:
        head = {"tie_word_embeddings": tied}
    # Null = the other spelling decides.
    return {**dict.fromkeys(_TIED), **head} if head else {}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0


def load_model_config(directory: Path) -> ModelConfig:
    """Read `directory/config.json`. Raises `UnreadableConfig` if there is none or it is not an object."""
    return model_config_from_hf(read_config(directory), str(directory / "config.json"))


def read_config(directory: Path) -> dict[str, Any]:
    """Return the raw object in `directory/config.json`. Raises UnreadableConfig."""
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


def nearest_family(config: Mapping[str, Any]) -> str | None:
    """Return the `model_type` of the served family whose names resemble the configuration's names the most.

    None = the configuration has neither a `model_type` nor `architectures`.
    """
    names = config.get("architectures")
    candidates = [config.get("model_type"), *(names if isinstance(names, list) else [names])]
    words = [_letters(word) for word in candidates if isinstance(word, str)]
    if not words:
        return None

    def likeness(family: str) -> float:
        spellings = (_letters(family), _letters(ADAPTERS[family].architecture))
        return max(
            (SequenceMatcher(None, word, name).ratio() for word in words for name in spellings), default=0.0
        )

    return max(ADAPTERS, key=likeness)


def _letters(name: str) -> str:
    """Return the letters of a model's or class's name, without the parts that all such names have."""
    bare = name[:MOST_LETTERS].lower()
    for ending in ("forcausallm", "forconditionalgeneration", "_text", "_moe", "moe"):
        bare = bare.removesuffix(ending)
    return bare.replace("_", "").replace("-", "")


def _family(config: Mapping[str, Any]) -> str | None:
    if isinstance(model_type := config.get("model_type"), str) and model_type in ADAPTERS:
        return model_type
    names = config.get("architectures")
    for family, adapter in ADAPTERS.items():
        if (architecture := adapter.architecture) == names or (
            isinstance(names, list) and architecture in names
        ):
            return family
    return None


FAMILIES_SERVED = (
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_next",
    "zamba2",
)
ACTIVATIONS_SERVED = ("relu2", "relu", "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new")
CONVOLUTION_ACTIVATIONS_SERVED = ("silu", "swish")
"""Two names of one function."""
EXPERT_ACTIVATIONS_SERVED = {True: ("silu", "swish"), False: ("relu2",)}
"""Served activations of experts with a gate (True) and without (False)."""


def why_not_served(model: ModelConfig) -> str | None:
    """Return why this version's engine cannot serve the model, with what it serves instead; None = it can."""
    return _checkpoint_problem(model) or _mixer_problem(model) or _feed_forward_problem(model)


def _checkpoint_problem(model: ModelConfig) -> str | None:
    if model.family not in FAMILIES_SERVED:
        return _refusal(f"models of family {model.family}", f"{' and '.join(FAMILIES_SERVED)} models")
    if model.quantized is not None:
        return _refusal(
            f"checkpoints whose weights are quantized ({model.quantized})",
            "weights that are stored as bfloat16, float16 or float32, by GPTQ (4 or 8 bits), AWQ (gemm), "
            "compressed-tensors (packed, int8, FP8, FP4), ModelOpt (FP8, NVFP4), as FP8 or as MXFP4, and "
            "quantizes them itself with quantization int8 or int4",
        )
    return None


def _mixer_problem(model: ModelConfig) -> str | None:
    if model.attention is not None and model.attention.rotated % 2:
        what = f"heads of which {model.attention.rotated} elements are rotated"
        return _refusal(what, "even numbers of them")
    for mixer in (model.mamba, model.gated_delta):
        if mixer is not None and mixer.activation not in CONVOLUTION_ACTIVATIONS_SERVED:
            what = f"mixers with the activation {mixer.activation} after their convolution"
            return _refusal(what, ", ".join(CONVOLUTION_ACTIVATIONS_SERVED))
    return None


def _feed_forward_problem(model: ModelConfig) -> str | None:
    if model.mlp is not None and model.mlp.activation not in ACTIVATIONS_SERVED:
        return _refusal(f"models with the activation {model.mlp.activation}", ", ".join(ACTIVATIONS_SERVED))
    if (moe := model.moe) is None:
        return None
    if moe.activation not in (activations := EXPERT_ACTIVATIONS_SERVED[moe.gated]):
        what = f"experts {'with' if moe.gated else 'without'} a gate and the activation {moe.activation}"
        return _refusal(what, ", ".join(activations))
    if moe.bias:
        return _refusal(f"{model.family} models whose experts have a bias", "experts without one")
    if moe.latent is not None and moe.shared_gate:
        what = "experts of a latent width beside a shared expert with a gate"
        return _refusal(what, "shared experts without one")
    return None


def _refusal(what: str, served: str) -> str:
    return f"this version cannot serve {what} yet, only plan for them; it serves {served}"
