# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Gate and grouped RMSNorm on a GPU, by rows and groups; see README.md."""

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
"""Largest width of a group, which stays in the registers of one program."""
TOGETHER = 1024
"""Elements of narrow groups that a program takes together, so that a thread loads 128 bits at once."""


def gated_norm(
    y: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    groups: int,
    norm_first: bool = False,
) -> torch.Tensor:
    """Compute RMSNorm of y * silu(gate) over each of `groups` equal parts of a row.

    With `norm_first` compute RMSNorm of the parts of y, times silu(gate). `y` and `gate` are [T, d], rows may
    be strided; `weight` is [d], or [d / groups] shared by all parts, or None for the gate alone. The result
    is [T, d] in the type of `gate`. Raises WrongArgument.
    """
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    call(y, gate, weight, eps, groups, out, norm_first).run()
    return out


def call(
    y: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    groups: int,
    out: torch.Tensor,
    norm_first: bool = False,
) -> KernelCall:
    """Check the arguments of `gated_norm` and return the launch that writes `out` [T, d].

    Raises WrongArgument, UnsupportedArgument.
    """
    check("y", y, (None, None))
    T, width = y.shape
    check("gate", gate, (T, width), device=y.device)
    if groups < 1 or width % groups:
        raise WrongArgument(f"groups is {groups}; it must divide the {width} elements of a row of y")
    part = width // groups
    alike = weight is not None and weight.shape == (part,)
    if weight is not None:
        check("weight", weight, (part if alike else width,), device=y.device)
    if part > MOST_WIDTH:
        raise UnsupportedArgument(f"y has groups of {part}; the kernel takes {MOST_WIDTH} at most")
    block = block_of(part, least=16)
    together = block_of(groups, most=max(1, TOGETHER // block))
    launch = launch_for(
        "gated_norm", y.device, f"d{part} {y.dtype}", Launch(max(1, min(16, block * together // 512)))
    )
    programs = ceil_div(groups, together)
    rows = rows_of_a_program(T, programs)
    return KernelCall(
        _gated_norm,
        (ceil_div(T, rows), programs),
        {
            "y": y,
            "y_row": y.stride(0),
            "gate": gate,
            "gate_row": gate.stride(0),
            "weight": weight,
            "out": out,
            "out_row": out.stride(0),
            "eps": eps,
            "T": T,
            "rows": rows,
        },
        {
            "WIDTH": part,
            "BLOCK": block,
            "GROUPS": groups,
            "TOGETHER": together,
            "ALIKE": alike,
            "NORM_FIRST": norm_first,
        },
        launch,
    )


@triton.jit(do_not_specialize=["T", "rows"])
def _gated_norm(
    y, y_row, gate, gate_row, weight, out, out_row, eps, T, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    GROUPS: tl.constexpr, TOGETHER: tl.constexpr, ALIKE: tl.constexpr, NORM_FIRST: tl.constexpr,
):  # fmt: skip
    """Grid (blocks of `rows` rows, blocks of TOGETHER groups): write RMSNorm of y * silu(gate) to `out`.

    The last block of rows ends at row T. WIDTH is the number of elements of a group, which BLOCK pads to a
    power of two. ALIKE: all groups share one weight [WIDTH]. NORM_FIRST: y is normed before it is multiplied
    by silu(gate). Without `weight`, `out` is y * silu(gate).
    """
    group = (tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER))[:, None]
    part = tl.arange(0, BLOCK)[None, :]
    inside = (group < GROUPS) & (part < WIDTH)
    offsets = group * WIDTH + part
    if weight is not None:
        # Kept in its own type: half the registers of float32 in the loop over rows.
        if ALIKE:
            factor = tl.load(weight + part, mask=part < WIDTH, other=0.0)
        else:
            factor = tl.load(weight + offsets, mask=inside, other=0.0)
    first = tl.program_id(0) * rows
    for i in range(tl.minimum(rows, T - first)):
        row = (first + i).to(tl.int64)
        gate_value = tl.load(gate + row * gate_row + offsets, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + row * y_row + offsets, mask=inside, other=0.0).to(tl.float32)
        gated = value * (gate_value * tl.sigmoid(gate_value))
        if weight is not None:
            normed = value if NORM_FIRST else gated
            scale = tl.rsqrt(tl.sum(normed * normed, 1) / WIDTH + eps)
            gated *= scale[:, None] * factor.to(tl.float32)
        tl.store(out + row * out_row + offsets, gated.to(out.dtype.element_ty), mask=inside)
