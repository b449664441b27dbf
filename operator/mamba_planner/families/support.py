"""Which models this version can serve: the one answer of planner, operator, local mode and engine.

The adapters read more families than the engine has layers for: those can be planned for and are refused
everywhere with the same words. Torch-free.
"""

from mamba_planner.model_config import ModelConfig

FAMILIES_SERVED = ("nemotron_h",)
LAYERS_SERVED = frozenset({"mamba", "attention", "mlp"})
ACTIVATIONS_SERVED = ("relu2", "relu", "silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new")


def why_not_served(model: ModelConfig) -> str | None:
    """Why this version's engine cannot serve the model, and what it serves instead; None = it can."""
    if model.family not in FAMILIES_SERVED:
        return (
            f"this version cannot serve models of family {model.family} yet, only plan for them; it serves "
            f"dense {' and '.join(FAMILIES_SERVED)} models"
        )
    if missing := sorted({kind for kind in model.layers if kind not in LAYERS_SERVED}):
        return (
            f"this version cannot serve {model.family} models with {' and '.join(missing)} layers yet, only "
            "plan for them; it serves dense ones"
        )
    if model.mlp is not None and model.mlp.activation not in ACTIVATIONS_SERVED:
        return (
            f"this version cannot serve models with the activation {model.mlp.activation} yet, only plan for "
            f"them; it knows {' and '.join(ACTIVATIONS_SERVED)}"
        )
    return None
