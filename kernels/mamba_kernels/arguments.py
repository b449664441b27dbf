"""Checks of a kernel's arguments before it runs: a wrong argument is an error that names it."""

from collections.abc import Collection, Sequence

import torch

NARROW_AND_WIDE = (torch.float32, torch.float16, torch.bfloat16)
"""Types that the kernels load. Sums are kept in float32, so only the references compute in float64."""


class WrongArgument(ValueError):
    """A tensor that contradicts the other arguments, so that no backend could compute with it.

    The message names the tensor, says what it is, and what it must be.
    """


class UnsupportedArgument(WrongArgument):
    """A tensor that the kernel cannot take, but the reference may; the message says the same."""


def check(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int | None],
    *,
    dtypes: Collection[torch.dtype] = NARROW_AND_WIDE,
    device: torch.device | None = None,
    dense_from: int = -1,
) -> None:
    """Raise WrongArgument unless `tensor` has this shape (None = any extent) and lies on `device`.

    Raise UnsupportedArgument unless it has one of the types and is dense from dimension `dense_from` on (-1:
    only the last one; the dimensions before it may have any strides). Called for every argument of every
    launch, so the check of a correct argument takes few steps; only a wrong one is slow.
    """
    sizes = tensor.shape
    fits = len(sizes) == len(shape)
    for expected, extent in zip(shape, sizes, strict=False):
        if expected is not None and expected != extent:
            fits = False
    if not fits:
        raise _shape_error(name, tensor, shape)
    if tensor.dtype not in dtypes:
        raise UnsupportedArgument(
            f"{name} is {_name(tensor.dtype)}; it must be {' or '.join(_name(dtype) for dtype in dtypes)}"
        )
    if device is not None and tensor.device != device:
        raise WrongArgument(f"{name} is on {tensor.device}, the other arguments are on {device}")
    if dense_from == -1:
        if sizes[-1] != 1 and tensor.stride(-1) != 1:
            raise _stride_error(name, tensor, len(sizes) - 1, 1)
        return
    inner = 1
    for dimension in range(len(sizes) - 1, dense_from % len(sizes) - 1, -1):
        if sizes[dimension] != 1 and tensor.stride(dimension) != inner:
            raise _stride_error(name, tensor, dimension, inner)
        inner *= sizes[dimension]


def check_plan(name: str, tensor: torch.Tensor, rows: int, device: torch.device | None = None) -> None:
    """Raise WrongArgument unless `tensor` has the rows of its plan and lies on the device of its plan."""
    if len(tensor) != rows:
        raise WrongArgument(f"{name} has {len(tensor)} rows; its plan was made for {rows}")
    if device is not None and tensor.device != device:
        raise WrongArgument(f"{name} is on {tensor.device}; its plan was made for {device}")


def _shape_error(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> WrongArgument:
    # Without a single fixed extent only the rank is wrong, and the reference may accept another rank.
    kind = UnsupportedArgument if all(extent is None for extent in shape) else WrongArgument
    expected = ", ".join("any" if extent is None else str(extent) for extent in shape)
    return kind(f"{name} has shape {list(tensor.shape)}; it must be [{expected}]")


def _stride_error(name: str, tensor: torch.Tensor, dimension: int, expected: int) -> UnsupportedArgument:
    return UnsupportedArgument(
        f"{name} has strides {list(tensor.stride())}; dimension {dimension} must have stride {expected}"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
