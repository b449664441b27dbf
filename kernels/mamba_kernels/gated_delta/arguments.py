"""Checks and names of the delta rule's tensors, shared by the kernels of prefill and decode."""

from collections.abc import Collection
from typing import Any

import torch

from mamba_kernels.arguments import WrongArgument, check
from mamba_kernels.gated_delta.inputs import LEAST_SQUARE, DeltaInputs


def check_delta(
    state: torch.Tensor, inputs: DeltaInputs, out: torch.Tensor, *, states: Collection[torch.dtype]
) -> tuple[int, int, int, int, int]:
    """Check the tensors and return rows T, value heads H, key heads G, V, K. Raises WrongArgument.

    `states` are the types of states that the kernels store.
    """
    device = state.device
    check("state", state, (None, None, None, None), dtypes=states)
    _, H, V, K = state.shape
    check("v", inputs.v, (None, H, V), device=device)
    T = len(inputs.v)
    check("k", inputs.k, (T, None, K), dtypes=(inputs.v.dtype,), device=device)
    G = inputs.k.shape[1]
    if not G or H % G:
        raise WrongArgument(f"k has {G} heads; their number must divide the {H} heads of state")
    check("q", inputs.q, (T, G, K), dtypes=(inputs.v.dtype,), device=device)
    decays = (H, K) if inputs.by_channel else (H,)
    check("a", inputs.a, (T, *decays), device=device, dense_from=1 if inputs.by_channel else -1)
    check("b", inputs.b, (T, H), device=device)
    check("A", inputs.A, (H,), device=device)
    check("dt_bias", inputs.dt_bias, decays, device=device, dense_from=0 if inputs.by_channel else -1)
    check("out", out, (T, H, V), device=device)
    return T, H, G, V, K


def delta_arguments(
    state: torch.Tensor, inputs: DeltaInputs, routes: torch.Tensor, out: torch.Tensor
) -> dict[str, Any]:
    """Return tensors and strides under the names of both kernels.

    `routes` are [3, n] int32 of a `SlotPlan`.
    """
    named: dict[str, Any] = {
        "state": state,
        "state_slab": state.stride(0),
        "state_head": state.stride(1),
        "state_row": state.stride(2),
    }
    for name in ("q", "k", "v"):
        tensor: torch.Tensor = getattr(inputs, name)
        named |= {name: tensor, f"{name}_row": tensor.stride(0), f"{name}_head": tensor.stride(1)}
    return {
        **named,
        "a": inputs.a,
        "a_row": inputs.a.stride(0),
        "b": inputs.b,
        "b_row": inputs.b.stride(0),
        "A": inputs.A,
        "dt_bias": inputs.dt_bias,
        "routes": routes,
        "route": routes.stride(0),
        "out": out,
        "out_row": out.stride(0),
        "out_head": out.stride(1),
        "least": LEAST_SQUARE,
        "scale": inputs.q.shape[2] ** -0.5,
        "beta_scale": inputs.beta_scale,
    }
