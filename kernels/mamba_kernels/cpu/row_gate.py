"""A sigmoid gate on rows in one call."""

import ctypes

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import SigmoidGate


class RowGate:
    """x = x * sigmoid(gate), rounded once."""

    def __init__(self, library: Library) -> None:
        self._run = library.gate

    def __call__(self, x: torch.Tensor, gate: torch.Tensor) -> None:
        """x: [n, d], float32 or bfloat16, dense, written; gate: like x, rows may be strided.

        A row has the same bits alone and among others, and with any instruction set. Raises WrongArgument.
        """
        check("x", x, (None, None), dtypes=KINDS, device=CPU, dense_from=0)
        check("gate", gate, x.shape, dtypes=(x.dtype,), device=CPU, dense_from=1)
        rows, width = x.shape
        call = SigmoidGate(
            x=x.data_ptr(), gate=gate.data_ptr(), gate_stride=gate.stride(0), rows=rows, width=width,
            kind=KINDS[x.dtype],
        )  # fmt: skip
        self._run(ctypes.addressof(call))
