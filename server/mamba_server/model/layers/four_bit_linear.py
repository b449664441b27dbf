"""`FourBitLinear`: a product whose matrix, or parts of it, have four bits on a GPU.

`Loader.product_of` makes one where a checkpoint stores such matrices, or where `--quantization int4` fits
them; each step calls it.
"""

from collections.abc import Sequence

import torch

from mamba_kernels.dispatch.signatures import FourBitProduct
from mamba_kernels.four_bit import FourBitMatrix
from mamba_server.model.layers.linear import Linear


class FourBitLinear:
    """Multiplies rows by several matrices, of four bits or ordinary, and puts the results side by side."""

    def __init__(
        self,
        parts: Sequence[Linear | FourBitMatrix],
        bias: torch.Tensor | None,
        product: FourBitProduct,
        *,
        invariant: bool,
    ) -> None:
        """Join the parts.

        Args:
            parts: the matrices; ordinary ones have their own part of the bias.
            bias: [all outputs] bias of the parts of four bits.
            product: the operator that multiplies by them.
            invariant: whether a row's bits must not depend on the number of rows.
        """
        self.parts, self._product, self._invariant = tuple(parts), product, invariant
        widths = [part.weight.shape[0] if isinstance(part, Linear) else part.shape[0] for part in self.parts]
        self.outputs = sum(widths)
        ends = [sum(widths[: number + 1]) for number in range(len(widths))]
        self._places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self._biases = [None if bias is None else bias[place] for place in self._places]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [T, outputs] of x: [T, inputs]."""
        out = x.new_empty(len(x), self.outputs)
        for part, place, bias in zip(self.parts, self._places, self._biases, strict=True):
            if isinstance(part, Linear):
                out[:, place] = part(x)
            else:
                self._product(x, part, bias, out[:, place], self._invariant)
        return out
