"""Constant factors on activations (Falcon-H1), which are multiplied into weights while they are loaded.

A factor on the input or the output of a projection is a factor on its rows, so layers and kernels do not need
to know it. `HybridModel` applies the factors on embeddings, the residual stream and logits.
"""

from collections.abc import Mapping

import torch

from mamba_planner.model_config import MambaConfig, ModelConfig
from mamba_server.model.checkpoint.tensor_names import TensorNames

Factors = Mapping[str, torch.Tensor]
"""Factors [outputs] or [], float32, on the rows of a weight or on a bias, by name of the tensor below its
layer."""


def row_factors(config: ModelConfig, names: TensorNames) -> Factors:
    """Return the factors to multiply into the weights and biases of each layer while they are loaded.

    Tensors whose factors are all 1 are left out. The result is empty for a model without such factors.
    """
    factors, tensors = config.multipliers, dict[str, torch.Tensor]()

    def put(kind: str, projection: str, weight: torch.Tensor | float, bias: torch.Tensor | float) -> None:
        for suffix, factor in (("weight", weight), ("bias", bias)):
            rows = torch.as_tensor(factor, dtype=torch.float32)
            if not bool((rows == 1).all()):
                tensors[f"{kind}.{projection}.{suffix}"] = rows

    if (mixers := names.parallel) is not None and config.mamba is not None:
        parts = _projection_factors(config.mamba, factors.ssm)
        put(mixers.mamba, "in_proj", factors.ssm_in * parts, parts)
        put(mixers.mamba, "out_proj", factors.ssm_out, factors.ssm_out)
        put(mixers.attention, "q_proj", factors.attention_in, 1.0)
        put(mixers.attention, "k_proj", factors.attention_in * factors.key, factors.key)
        put(mixers.attention, "v_proj", factors.attention_in, 1.0)
        put(mixers.attention, "o_proj", factors.attention_out, factors.attention_out)
    if (feed_forward := names.blocks.get("mlp")) is not None:
        put(feed_forward.mixer, "gate_proj", factors.mlp_gate, factors.mlp_gate)
        put(feed_forward.mixer, "down_proj", factors.mlp_down, factors.mlp_down)
    return tensors


def _projection_factors(mamba: MambaConfig, parts: tuple[float, float, float, float, float]) -> torch.Tensor:
    """Return the factors of z | x | B | C | dt, the outputs of a mixer's input projection."""
    shared = mamba.groups * mamba.state_size
    widths = (mamba.inner, mamba.inner, shared, shared, mamba.heads)
    return torch.cat([torch.full((width,), part) for width, part in zip(widths, parts, strict=True)])
