"""Token ids to rows, and rows to logits where one matrix does both."""

import torch
import torch.nn.functional as F

from mamba_kernels.cpu.packed_linear import PackedLinear
from mamba_server.model.layers.loader import Loader, Rows


class TokenEmbedding:
    """A matrix [vocabulary, d], once in memory: packed where the C++ kernels compute."""

    def __init__(self, loader: Loader, name: str, size: int, width: int) -> None:
        self._loader = loader
        weight = loader.tensor(name, size, width)
        self.weight = weight if loader.library is None else loader.packed(weight)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids: [T] -> [T, d]."""
        if isinstance(self.weight, torch.Tensor):
            return F.embedding(ids, self.weight)
        return self.weight.rows(ids)

    def head(self) -> Rows:
        """The product with it: [T, d] -> [T, vocabulary]."""
        if isinstance(self.weight, torch.Tensor):
            return self._loader.plain(self.weight, None)
        assert self._loader.library is not None
        return PackedLinear(self._loader.library, self.weight, None)
