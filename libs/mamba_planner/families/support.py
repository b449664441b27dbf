"""The models that this version can serve: one answer for planner, operator, local mode and engine.

Every family that the adapters read is served, but not every option of its configuration. Models with other
options can be planned for and are refused everywhere with the same words. Torch-free.
"""

from mamba_planner.model_config import ModelConfig

FAMILIES_SERVED = ("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "qwen3_next")
ACTIVATIONS_SERVED = ("relu2", "relu", "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new")
CONVOLUTION_ACTIVATIONS_SERVED = ("silu", "swish")
"""Two names of one function."""
EXPERT_ACTIVATIONS_SERVED = {True: ("silu", "swish"), False: ("relu2",)}
"""Served activations of experts with a gate (True) and without (False)."""


def why_not_served(model: ModelConfig) -> str | None:
    """Return why this version's engine cannot serve the model, and what it serves instead; None = it can."""
    return _checkpoint_problem(model) or _mixer_problem(model) or _feed_forward_problem(model)


def _checkpoint_problem(model: ModelConfig) -> str | None:
    if model.family not in FAMILIES_SERVED:
        return _refusal(f"models of family {model.family}", f"{' and '.join(FAMILIES_SERVED)} models")
    if model.quantized is not None:
        return _refusal(
            f"checkpoints whose weights are quantized ({model.quantized})",
            "weights that are stored as bfloat16, float16, float32 or FP8, and quantizes them itself with "
            "quantization int8",
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
    if model.mamba is not None and model.mamba.gated_norm and model.mamba.norm_before_gate:
        what = f"{model.family} models whose norm comes before the gate"
        return _refusal(what, "those whose norm comes after the gate")
    return None


def _feed_forward_problem(model: ModelConfig) -> str | None:
    if model.mlp is not None and model.mlp.activation not in ACTIVATIONS_SERVED:
        return _refusal(f"models with the activation {model.mlp.activation}", ", ".join(ACTIVATIONS_SERVED))
    if (moe := model.moe) is None:
        return None
    if moe.activation not in (activations := EXPERT_ACTIVATIONS_SERVED[moe.gated]):
        what = f"experts {'with' if moe.gated else 'without'} a gate and the activation {moe.activation}"
        return _refusal(what, ", ".join(activations))
    if moe.latent is not None or moe.bias:
        what = "a latent width" if moe.latent is not None else "a bias"
        return _refusal(f"{model.family} models whose experts have {what}", "experts without one")
    return None


def _refusal(what: str, served: str) -> str:
    return f"this version cannot serve {what} yet, only plan for them; it serves {served}"
