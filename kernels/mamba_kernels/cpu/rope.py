"""Rotary positions in one call."""

import ctypes

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import Rope
from mamba_kernels.rope.arguments import check_width


class RowRope:
    """Rotates the heads of rows in place, as `mamba_kernels.rope.rope` does, by the C++ kernels."""

    def __init__(self, library: Library) -> None:
        self._run = library.rope

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate the heads of each row in place.

        `x` is [T, heads, head_dim], float32 or bfloat16, rows may be strided; `cos` and `sin` are [T, h]
        float32. A row has the same bits alone and among others, and with any instruction set. Raises
        WrongArgument.
        """
        check("x", x, (None, None, None), dtypes=KINDS, device=CPU, dense_from=1)
        rows, heads, width = x.shape
        check("cos", cos, (rows, None), dtypes=(torch.float32,), device=CPU, dense_from=0)
        half = cos.shape[1]
        check("sin", sin, (rows, half), dtypes=(torch.float32,), device=CPU, dense_from=0)
        check_width(half, width)
        call = Rope(
            x=x.data_ptr(), x_stride=x.stride(0), cos=cos.data_ptr(), sin=sin.data_ptr(), rows=rows,
            heads=heads, head_dim=width, half=half, kind=KINDS[x.dtype],
        )  # fmt: skip
        self._run(ctypes.addressof(call))
