"""`TensorSource`: the interface from which a model takes its tensors; `Weights` implements it over files."""

from typing import Literal, Protocol

import torch

from mamba_kernels.cpu.quantized.block_numbers import BlockNumbers
from mamba_kernels.four_bit import FourBitMatrix
from mamba_kernels.fp8 import Fp8Matrix

Fp8Form = Literal["", "rows", "blocks"]
"""Scales of FP8 matrices: of outputs or of blocks of `GROUP` inputs; "" = no matrix is stored as FP8."""


class TensorSource(Protocol):
    """Source of a model's tensors, under names without a prefix such as `layers.0.mixer.A_log`."""

    def has(self, name: str) -> bool:
        """Return whether there is a tensor with the name `name`."""
        ...

    def rows(self, name: str) -> int:
        """Return the first dimension of the tensor with the name `name`; 0 = there is none."""
        ...

    def numbers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> BlockNumbers | None:
        """Return the matrix `name` of exactly `shape` as the integers that the checkpoint stores.

        None: it is stored otherwise, or no kernel computes with its integers, so that `take` has to be
        called. Raises WeightsError.
        """
        ...

    def four_bits(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> FourBitMatrix | None:
        """Return the matrix `name` of exactly `shape` as the codes of four bits that the checkpoint stores.

        None: it is stored otherwise, or no kernel of a GPU computes with its codes, so that `take` has to be
        called. Raises WeightsError.
        """
        ...

    @property
    def fp8_form(self) -> Fp8Form:
        """How the checkpoint stores FP8 matrices."""
        ...

    def fp8(self, name: str, shape: tuple[int, ...]) -> Fp8Matrix | None:
        """Return the matrix `name` of exactly `shape`, or one of each expert, as the FP8 that is stored.

        None: it is stored otherwise, so that `take` has to be called. Raises WeightsError.
        """
        ...

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return the tensor `name` of exactly `shape`, converted. Raises WeightsError."""
        ...

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raise WeightsError if a tensor was not taken; tensors with a prefix of `unused` need not be."""
        ...
