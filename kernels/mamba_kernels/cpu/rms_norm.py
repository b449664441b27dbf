"""RMSNorm of the residual stream in one call."""

import ctypes

import torch

from mamba_kernels.arguments import check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS
from mamba_kernels.cpu.structures import RmsNorm


class RowNorm:
    """Computes x = x + added and returns x / sqrt(mean(x^2) + eps) * weight.

    Each object has one weight [d], float32 or bfloat16.
    """

    def __init__(
        self, library: Library, weight: torch.Tensor, eps: float, dtype: torch.dtype | None = None
    ) -> None:
        """Prepare the call.

        `dtype` is the type of y and `added`, by default the type of `weight`. With `dtype` bfloat16, `weight`
        may be float32.
        """
        self._run = library.rms_norm
        self._weight, self.dtype = weight, dtype or weight.dtype
        self.call = RmsNorm(
            weight=weight.data_ptr(), width=len(weight), eps=eps, kind=KINDS[self.dtype],
            weight_kind=KINDS[weight.dtype],
        )  # fmt: skip
        self._address = ctypes.addressof(self.call)

    def __call__(self, x: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """Add `added` to x and return the norm y, [T, d]. Raises WrongArgument.

        `x` is [T, d], rows may be strided, float32 or in the type of y, written if there is `added`, which is
        [T, d], dense, in the type of y.
        """
        kind, width = self.dtype, len(self._weight)
        check("x", x, (None, width), dtypes=(torch.float32, kind), device=CPU)
        if added is not None:
            check("added", added, (len(x), width), dtypes=(kind,), device=CPU, dense_from=0)
        out = torch.empty(x.shape, dtype=kind)
        call = self.call
        call.x, call.x_stride, call.x_kind = x.data_ptr(), x.stride(0), KINDS[x.dtype]
        call.added = None if added is None else added.data_ptr()
        call.out, call.rows = out.data_ptr(), len(x)
        self._run(self._address)
        return out
