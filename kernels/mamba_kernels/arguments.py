"""Checks of a kernel's arguments before it runs: a wrong one is an error with its name."""

from collections.abc import Collection, Sequence

import torch

NARROW_AND_WIDE = (torch.float32, torch.float16, torch.bfloat16)
"""What the kernels load; sums are kept in float32, so float64 is for the references alone."""


class UnsupportedArgument(ValueError):
    """A tensor that the kernel cannot take; the message names it, what it is and what is wanted."""


def check(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    *,
    dtypes: Collection[torch.dtype] = NARROW_AND_WIDE,
    device: torch.device | None = None,
    dense_from: int = -1,
) -> None:
    """Raises UnsupportedArgument unless `tensor` has that shape (None = any extent), one of the types, lies
    on `device`, and is dense from dimension `dense_from` on (-1: only the last one; the dimensions before it
    may have any strides)."""
    if tensor.dim() != len(shape) or any(
        wanted is not None and wanted != extent for wanted, extent in zip(shape, tensor.shape, strict=False)
    ):
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise UnsupportedArgument(f"{name} has shape {list(tensor.shape)}; it must be [{wanted}]")
    if tensor.dtype not in dtypes:
        raise UnsupportedArgument(
            f"{name} is {_name(tensor.dtype)}; it must be {' or '.join(_name(each) for each in dtypes)}"
        )
    if device is not None and tensor.device != device:
        raise UnsupportedArgument(f"{name} is on {tensor.device}, the other arguments are on {device}")
    inner = 1
    for dimension in reversed(range(dense_from % tensor.dim(), tensor.dim())):
        if tensor.shape[dimension] != 1 and tensor.stride(dimension) != inner:
            raise UnsupportedArgument(
                f"{name} has strides {list(tensor.stride())}; dimension {dimension} must have stride {inner}"
            )
        inner *= tensor.shape[dimension]


def check_rows(name: str, tensor: torch.Tensor, rows: int) -> None:
    """Raises UnsupportedArgument unless `tensor` has the rows that its plan was made for."""
    if len(tensor) != rows:
        raise UnsupportedArgument(f"{name} has {len(tensor)} rows; its plan was made for {rows}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
