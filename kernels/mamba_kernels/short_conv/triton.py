"""The gated short convolution on a GPU: the kernels of the causal convolution, with gates; see README.md."""

import torch

from mamba_kernels.conv1d_prefill import triton as conv1d_prefill_kernel
from mamba_kernels.conv1d_update import triton as conv1d_update_kernel
from mamba_kernels.slot_plan import SlotPlan
from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.triton_support import KernelCall


def short_conv_update(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: SlotPlan
) -> torch.Tensor:
    """Compute one token for each row and advance its window, as the reference does.

    `x` is [n, 3 C], rows may be strided; `window` is [slabs, K-1, C], C dense, written. Raises WrongArgument.
    """
    out = torch.empty(len(x), weight.shape[-1], dtype=x.dtype, device=x.device)
    update_call(x, weight, bias, window, plan.device_routes, out).run()
    return out


def short_conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, window: torch.Tensor, plan: ChunkPlan
) -> torch.Tensor:
    """Compute the pieces of the plan and write their windows, as the reference does.

    `x` is [T, 3 C], rows may be strided; `window` is [slabs, K-1, C], C dense, written. Raises WrongArgument.
    """
    out = torch.empty(len(x), weight.shape[-1], dtype=x.dtype, device=x.device)
    prefill_call(x, weight, bias, window, plan, out).run()
    return out


def update_call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    routes: torch.Tensor,
    out: torch.Tensor,
) -> KernelCall:
    """Return the launch that writes `out` [n, C]; `routes` are [3, n] int32 of a `SlotPlan`."""
    return conv1d_update_kernel.call(x, weight, bias, window, routes, out, gated=True)


def prefill_call(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    window: torch.Tensor,
    plan: ChunkPlan,
    out: torch.Tensor,
) -> KernelCall:
    """Check the arguments of `short_conv_prefill` and return the launch that writes `out` [T, C]."""
    return conv1d_prefill_kernel.call(x, weight, bias, window, plan, out, gated=True)
