# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""RMSNorm of the residual stream on a GPU, after the last layer's result is added to it; see README.md."""

import torch
import triton
import triton.language as tl

from mamba_kernels.triton_support import (
    KernelCall,
    Launch,
    UnsupportedArgument,
    WrongArgument,
    block_of,
    ceil_div,
    check,
    launch_for,
    rows_of_a_program,
)

MOST_WIDTH = 1 << 15
"""Largest width of a row, which stays in the registers of one program."""


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    groups: int = 1,
) -> torch.Tensor:
    """Compute x = x + added and return y = x / sqrt(mean(x^2) + eps) * weight.

    The mean is over each of `groups` equal parts. `x` is [T, d], rows may be strided, written if there is
    `added`, [T, d]; `weight` is [d]. y is [T, d] in the type `dtype`, by default the type of `weight`. Raises
    WrongArgument.
    """
    out = torch.empty(x.shape, dtype=dtype or weight.dtype, device=x.device)
    call(x, weight, eps, added, out, groups).run()
    return out


def call(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    added: torch.Tensor | None,
    out: torch.Tensor,
    groups: int = 1,
) -> KernelCall:
    """Check the arguments of `rms_norm` and return the launch that writes `out` [T, d].

    Raises WrongArgument, UnsupportedArgument.
    """
    check("x", x, (None, None))
    T, whole = x.shape
    if groups < 1 or whole % groups:
        raise WrongArgument(f"groups is {groups}; it must divide the {whole} elements of a row of x")
    width = whole // groups
    if width > MOST_WIDTH:
        what = "rows" if groups == 1 else "groups"
        raise UnsupportedArgument(f"x has {what} of {width}; the kernel takes {MOST_WIDTH} at most")
    check("weight", weight, (whole,), device=x.device)
    if added is not None:
        check("added", added, (T, whole), device=x.device)
    block = block_of(width, least=128)
    launch = launch_for(
        "rms_norm", x.device, f"d{width} {x.dtype}", Launch(num_warps=max(1, min(16, block // 256)))
    )
    rows = rows_of_a_program(T, groups)
    return KernelCall(
        _rms_norm,
        (ceil_div(T, rows), groups),
        {
            "x": x,
            "x_row": x.stride(0),
            "added": added,
            "added_row": 0 if added is None else added.stride(0),
            "weight": weight,
            "out": out,
            "out_row": out.stride(0),
            "eps": eps,
            "T": T,
            "rows": rows,
        },
        {"WIDTH": width, "BLOCK": block},
        launch,
    )


@triton.jit
def row_of_stream(x, x_place, added, added_place, inside):
    """Return a row of x in float32; if there is `added`, add it to the row in memory first."""
    value = tl.load(x + x_place, mask=inside, other=0.0).to(tl.float32)
    if added is not None:
        value += tl.load(added + added_place, mask=inside, other=0.0).to(tl.float32)
        # The stored, rounded sum is normed, as if the sum were a separate pass.
        value = value.to(x.dtype.element_ty)
        tl.store(x + x_place, value, mask=inside)
        value = value.to(tl.float32)
    return value


@triton.jit(do_not_specialize=["T", "rows"])
def _rms_norm(
    x, x_row, added, added_row, weight, out, out_row, eps, T, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    part = tl.arange(0, BLOCK)
    inside = part < WIDTH
    offsets = tl.program_id(1) * WIDTH + part
    # Kept in its own type: half the registers of float32 in the loop over rows.
    factor = tl.load(weight + offsets, mask=inside, other=0.0)
    first = tl.program_id(0) * rows
    for i in range(tl.minimum(rows, T - first)):
        row = (first + i).to(tl.int64)
        value = row_of_stream(x, row * x_row + offsets, added, row * added_row + offsets, inside)
        scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
        normed = value * scale * factor.to(tl.float32)
        tl.store(out + row * out_row + offsets, normed.to(out.dtype.element_ty), mask=inside)
