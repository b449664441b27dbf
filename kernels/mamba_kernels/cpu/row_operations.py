"""Operations on independent rows in one call each: the largest number of a row, and a sigmoid gate."""

import ctypes

import torch

from mamba_kernels.arguments import WrongArgument, check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import SigmoidGate


class RowArgmax:
    """The place of each row's largest number, and whether the row is finite, found in one pass."""

    def __init__(self, library: Library) -> None:
        self._run = library.largest

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first place of each row's largest number, [r] int64, and whether it is finite, [r] bool.

        rows: [r, n], float32 or bfloat16, n at least one. A row is finite if it holds neither NaN nor
        positive infinity, nor negative infinity alone. The place is arbitrary in a row that holds NaN. Raises
        WrongArgument.
        """
        rows = rows.contiguous()
        check("rows", rows, (None, None), dtypes=KINDS, device=CPU)
        count, width = rows.shape
        if width == 0:
            raise WrongArgument("rows has no columns; there must be at least one")
        where, finite = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.bool)
        self._run(rows.data_ptr(), count, width, KINDS[rows.dtype], where.data_ptr(), finite.data_ptr())
        return where, finite


class RowGate:
    """The gate x = x * sigmoid(gate), rounded once."""

    def __init__(self, library: Library) -> None:
        self._run = library.gate

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> None:
        """Multiply x by the sigmoid of `gate` in place.

        x: [n, d], float32 or bfloat16, dense; gate: like x, rows may be strided. A row has the same bits
        alone and among others, and with any instruction set. Raises WrongArgument.
        """
        check("x", x, (None, None), dtypes=KINDS, device=CPU, dense_from=0)
        check("gate", gate, x.shape, dtypes=(x.dtype,), device=CPU, dense_from=1)
        rows, width = x.shape
        call = SigmoidGate(
            x=x.data_ptr(), gate=gate.data_ptr(), gate_stride=gate.stride(0), rows=rows, width=width,
            kind=KINDS[x.dtype],
        )  # fmt: skip
        self._run(ctypes.addressof(call))
