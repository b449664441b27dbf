"""Products with FP8 matrices, and the norms whose results they multiply, for `--quantization fp8`.

The loader makes them. A norm rounds the rows that it returns to FP8 in the same pass, and leaves them for the
products of the block; other rows, such as those of an activation, are rounded before their product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mamba_kernels.dispatch.backend import TORCH, Backend
from mamba_kernels.dispatch.operators import Operators
from mamba_kernels.fp8 import Fp8Matrix, Fp8Rows
from mamba_server.model.checkpoint.errors import UnsupportedModel

LEAST_CAPABILITY = (8, 9)
"""Compute capability of the first GPUs whose tensor cores multiply FP8."""


class NormedRows:
    """Passes the FP8 form of rows from the norm that computed it to the product that reads it.

    A model has one object, which holds the rows of the last norm.
    """

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None
        self._quantized: Fp8Rows | None = None

    def leave(self, rows: torch.Tensor, quantized: Fp8Rows) -> None:
        """Keep the FP8 form of `rows` until another norm leaves its own."""
        self._rows, self._quantized = rows, quantized

    def take(self, rows: torch.Tensor, groups: int) -> Fp8Rows | None:
        """Return the FP8 form of `rows` with `groups` scales per row; None = no norm has left it."""
        quantized = self._quantized
        if rows is not self._rows or quantized is None or quantized.scales.shape[1] != groups:
            return None
        return quantized


@dataclass(frozen=True, slots=True)
class Fp8Norm:
    """An RMSNorm that also rounds its result to FP8, and leaves that form in `NormedRows`."""

    weight: torch.Tensor
    eps: float
    dtype: torch.dtype
    groups: int
    """Number of scales of a row."""
    operators: Operators
    left: NormedRows

    def __call__(self, x: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        """Return norm(x + added), all [T, d]; x becomes the sum."""
        normed, rows = self.operators.fp8_norm(x, self.weight, self.eps, added, self.dtype, self.groups)
        self.left.leave(normed, rows)
        return normed


@dataclass(frozen=True, slots=True)
class Fp8Linear:
    """Multiplies rows by an FP8 matrix."""

    matrix: Fp8Matrix
    """Weights with their scales, [outputs, inputs]."""
    bias: torch.Tensor | None
    dtype: torch.dtype
    """Type of the product."""
    operators: Operators
    left: NormedRows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, outputs] of x: [T, inputs]."""
        rows = self.left.take(x, self.matrix.groups)
        if rows is None:
            rows = self.operators.fp8_rows(x, self.matrix.groups)
        return self.operators.fp8_product(rows, self.matrix, self.bias, self.dtype)


@dataclass(frozen=True, slots=True)
class JoinedProducts:
    """Multiplies rows by matrices of different forms, and puts the results side by side."""

    parts: Sequence[Callable[[torch.Tensor], torch.Tensor]]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products [T, all outputs] of x: [T, inputs]."""
        return torch.cat([part(x) for part in self.parts], 1)


def fp8_backend(backend: Backend, device: torch.device, *, batch_invariant: bool) -> Backend:
    """Return the backend of a model whose matrices are FP8. Raises UnsupportedModel if nothing computes it.

    On CPUs torch computes the numbers of a GPU, since there are no C++ kernels for them.
    """
    if batch_invariant:
        raise UnsupportedModel(
            "quantization fp8 and batch-invariant mode exclude each other in this version: serve without one"
        )
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < LEAST_CAPABILITY:
            raise UnsupportedModel(
                f"quantization fp8 needs a GPU of compute capability 8.9 or later, such as L4 or H100, and "
                f"this one has {capability[0]}.{capability[1]}: serve with --quantization none or int4"
            )
    return backend if backend.library is None else TORCH
