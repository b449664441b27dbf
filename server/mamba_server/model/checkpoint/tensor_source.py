"""Where a model's tensors come from: files, or whatever else hands them out by name."""

from typing import Protocol

import torch


class TensorSource(Protocol):
    """Hands out tensors under prefix-free names, such as `layers.0.mixer.A_log`, while a model is built."""

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return the tensor of exactly that shape, converted. Raises WeightsError."""
        ...

    def finish(self, unused: tuple[str, ...] = ()) -> None:
        """Raise WeightsError if a tensor is left that nobody took. `unused`: what names begin with that
        nobody has to take."""
        ...
