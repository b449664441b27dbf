"""Constant factors on activations that are put into weights while they are loaded: those of Falcon-H1.

A factor on what goes into a projection, or comes out of it, is a factor on its rows. So layers and kernels
know nothing of them. Those on embeddings, the residual stream and logits are the model's.
"""

from collections.abc import Mapping

import torch

from mamba_planner.model_config import MambaConfig, ModelConfig
from mamba_server.model.checkpoint.tensor_names import TensorNames

Factors = Mapping[str, torch.Tensor]
"""By name of a tensor below its layer: [outputs] or [] float32, on the rows of a weight or on a bias."""


def row_factors(config: ModelConfig, names: TensorNames) -> Factors:
    """Of every layer; empty where the family has none. Factors of 1 are left out."""
    factors, found = config.multipliers, dict[str, torch.Tensor]()

    def put(kind: str, projection: str, weight: torch.Tensor | float, bias: torch.Tensor | float) -> None:
        for suffix, factor in (("weight", weight), ("bias", bias)):
            rows = torch.as_tensor(factor, dtype=torch.float32)
            if not bool((rows == 1).all()):
                found[f"{kind}.{projection}.{suffix}"] = rows

    if (mixers := names.parallel) is not None and config.mamba is not None:
        parts = _of_projected(config.mamba, factors.ssm)
        put(mixers.mamba, "in_proj", factors.ssm_in * parts, parts)
        put(mixers.mamba, "out_proj", factors.ssm_out, factors.ssm_out)
        put(mixers.attention, "q_proj", factors.attention_in, 1.0)
        put(mixers.attention, "k_proj", factors.attention_in * factors.key, factors.key)
        put(mixers.attention, "v_proj", factors.attention_in, 1.0)
        put(mixers.attention, "o_proj", factors.attention_out, factors.attention_out)
    if (feed_forward := names.blocks.get("mlp")) is not None:
        put(feed_forward.mixer, "gate_proj", factors.mlp_gate, factors.mlp_gate)
        put(feed_forward.mixer, "down_proj", factors.mlp_down, factors.mlp_down)
    return found


def _of_projected(mamba: MambaConfig, parts: tuple[float, float, float, float, float]) -> torch.Tensor:
    """Of z | x | B | C | dt as a mixer's input projection gives them."""
    shared = mamba.groups * mamba.state_size
    widths = (mamba.inner, mamba.inner, shared, shared, mamba.heads)
    return torch.cat([torch.full((width,), part) for width, part in zip(widths, parts, strict=True)])
