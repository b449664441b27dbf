"""The largest number of each row, and whether the row is finite, in one pass over it."""

import torch

from mamba_kernels.arguments import WrongArgument, check
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import CPU, KINDS


class RowArgmax:
    """The call; rows may be float32 or bfloat16."""

    def __init__(self, library: Library) -> None:
        self._run = library.largest

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """rows: [r, n], n at least one. Returns the first place of each row's largest number, [r] int64, and
        whether the row is finite, [r] bool: it holds neither NaN nor positive infinity, nor negative infinity
        alone. A row that holds NaN gets some place. Raises WrongArgument.
        """
        rows = rows.contiguous()
        check("rows", rows, (None, None), dtypes=KINDS, device=CPU)
        count, width = rows.shape
        if width == 0:
            raise WrongArgument("rows has no columns; the largest number of none is not there")
        where, finite = torch.empty(count, dtype=torch.int64), torch.empty(count, dtype=torch.bool)
        self._run(rows.data_ptr(), count, width, KINDS[rows.dtype], where.data_ptr(), finite.data_ptr())
        return where, finite
