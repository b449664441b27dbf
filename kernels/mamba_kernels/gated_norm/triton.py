# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Gate and grouped RMSNorm on a GPU, one program per rows and group: see README.md."""

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
"""A group stays in the registers of one program."""


def gated_norm(
    y: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor | None, eps: float, groups: int
) -> torch.Tensor:
    """As the reference: RMSNorm of y * silu(gate) over each of `groups` equal parts of a row.

    y, gate: [T, d], rows may be strided; weight: [d], or None for the gate alone. Returns [T, d] in
    the type of `gate`. Raises WrongArgument.
    """
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    call(y, gate, weight, eps, groups, out).run()
    return out


def call(
    y: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    groups: int,
    out: torch.Tensor,
) -> KernelCall:
    """The launch that writes `out` [T, d]."""
    check("y", y, (None, None))
    T, width = y.shape
    check("gate", gate, (T, width), device=y.device)
    if weight is not None:
        check("weight", weight, (width,), device=y.device)
    if groups < 1 or width % groups:
        raise WrongArgument(f"groups is {groups}; it must divide the {width} elements of a row of y")
    part = width // groups
    if part > MOST_WIDTH:
        raise UnsupportedArgument(f"y has groups of {part}; the kernel takes {MOST_WIDTH} at most")
    block = block_of(part, least=128)
    launch = launch_for(
        "gated_norm", y.device, f"d{part} {y.dtype}", Launch(num_warps=max(1, min(16, block // 512)))
    )
    rows = rows_of_a_program(T, groups)
    return KernelCall(
        _gated_norm,
        (ceil_div(T, rows), groups),
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
        {"WIDTH": part, "BLOCK": block},
        launch,
    )


@triton.jit(do_not_specialize=["T", "rows"])
def _gated_norm(
    y, y_row, gate, gate_row, weight, out, out_row, eps, T, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    part = tl.arange(0, BLOCK)
    inside = part < WIDTH
    at = tl.program_id(1) * WIDTH + part
    if weight is not None:
        # As it lies: half the registers of float32 while the rows go by.
        factor = tl.load(weight + at, mask=inside, other=0.0)
    first = tl.program_id(0) * rows
    for i in range(tl.minimum(rows, T - first)):
        row = (first + i).to(tl.int64)
        opened = tl.load(gate + row * gate_row + at, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(y + row * y_row + at, mask=inside, other=0.0).to(tl.float32)
        value *= opened * tl.sigmoid(opened)
        if weight is not None:
            value *= tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps) * factor.to(tl.float32)
        tl.store(out + row * out_row + at, value.to(out.dtype.element_ty), mask=inside)
