"""Weights for a model without files: drawn where they will lie, the same for the same name and seed."""

import math
from zlib import crc32

import torch

from mamba_server.model.checkpoint.tensor_source import Fp8Form

STEP_SIZES = (0.001, 0.1)
"""The range of step sizes that biases stand for, as models are initialised."""


class RandomWeights:
    """A `TensorSource` whose tensors are random, in ranges in which a model's values stay sane."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def has(self, name: str) -> bool:
        """Return False: of several forms of a model, the one with most tensors is drawn."""
        return False

    def rows(self, name: str) -> int:
        """Return 0, as if the tensor did not exist."""
        return 0

    def numbers(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Return None: weights are drawn as floating point numbers."""

    def four_bits(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        """Return None, as `numbers` does."""

    @property
    def fp8_form(self) -> Fp8Form:
        """How FP8 matrices are stored: there are none."""
        return ""

    def fp8(self, name: str, shape: tuple[int, ...]) -> None:
        """Return None: weights are drawn as floating point numbers."""

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Draw the tensor of that name."""
        generator = torch.Generator(device).manual_seed(crc32(name.encode()) ^ self._seed)
        short = name.removesuffix(".weight").rpartition(".")[2]
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if name.endswith("A_log"):
            return tensor.uniform_(0.0, math.log(16.0), generator=generator)
        if name.endswith("dt_bias"):
            low, high = (math.log(size) for size in STEP_SIZES)
            steps = torch.empty(shape, device=device).uniform_(low, high, generator=generator).exp()
            # The inverse of softplus.
            return tensor.copy_(steps + torch.log(-torch.expm1(-steps)))
        if "norm" in short or short == "D":
            return tensor.fill_(1.0)
        inputs = math.prod(shape[1:]) if len(shape) < 3 or shape[1] == 1 else shape[-1]
        deviation = 0.02 if len(shape) == 1 else inputs**-0.5
        return tensor.normal_(0.0, deviation, generator=generator)

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Do nothing: no tensor can be left."""
