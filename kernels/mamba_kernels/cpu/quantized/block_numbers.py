"""`BlockNumbers`: a matrix that was quantized before it was loaded, as numbers with scales of groups.

The checkpoint reader makes such matrices, and layers join and select their rows. `pack_numbers` packs them
for the C++ kernels without changing one of the numbers; where no kernel computes with a matrix, `plain` makes
ordinary weights of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

BLOCK = 32
"""Inputs of a block of the kernels, which share a scale."""
_ROWS = 1024
"""Rows that are converted at once."""


@dataclass(frozen=True, slots=True)
class BlockNumbers:
    """A matrix [outputs, inputs] whose weights are scale * (number - zero)."""

    numbers: torch.Tensor
    """[outputs, inputs]: int8, or uint8 in 0..15 if there are zeros."""
    scales: torch.Tensor
    """Scale of each group of inputs, [outputs, groups] float16."""
    group: int
    """Inputs of a group: a multiple of `BLOCK`, or at least all inputs."""
    bits: int
    """4 or 8. Numbers of four bits without zeros are in -8..7."""
    dtype: torch.dtype
    """Type of the product's inputs and results."""
    zeros: torch.Tensor | None = None
    """Number that stands for zero in each group, [outputs, groups] uint8 in 0..16; None = 0 in all groups."""
    order: torch.Tensor | None = None
    """Place in a row of x of each input of the matrix, [inputs] int32; None = the same order."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.numbers.shape[0], self.numbers.shape[1]

    def of_blocks(self, values: torch.Tensor) -> torch.Tensor:
        """Repeat a value of each group, [outputs, groups], for each block of the group: [outputs, blocks]."""
        blocks = -(-self.shape[1] // BLOCK)
        if values.shape[1] == 1:
            return values.expand(-1, blocks)
        return values.repeat_interleave(self.group // BLOCK, 1)[:, :blocks]

    def select(self, rows: torch.Tensor | slice) -> "BlockNumbers":
        """Return a matrix that has only the rows with the numbers `rows`."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return replace(self, numbers=self.numbers[rows], scales=self.scales[rows], zeros=zeros)

    def joins(self, other: "BlockNumbers") -> bool:
        """Return whether both matrices can be one, with the rows of `other` after the rows of this one."""
        if (self.zeros is None) != (other.zeros is None) or (self.order is None) != (other.order is None):
            return False
        if self.order is not None and other.order is not None and not torch.equal(self.order, other.order):
            return False
        same_groups = self.group == other.group and self.scales.shape[1] == other.scales.shape[1]
        return same_groups and self.bits == other.bits and self.shape[1] == other.shape[1]

    def plain(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weights as `dtype`, [outputs, inputs], rounded once."""
        whole = torch.empty(self.shape, dtype=dtype)
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        for first in range(0, self.shape[0], _ROWS):
            part = self.select(slice(first, first + _ROWS))
            numbers = part.numbers.to(wide)
            if part.zeros is not None:
                numbers -= part.of_inputs(part.zeros).to(wide)
            values = (numbers * part.of_inputs(part.scales).to(wide)).to(dtype)
            if self.order is None:
                whole[first : first + _ROWS] = values
            else:
                whole[first : first + _ROWS].index_copy_(1, self.order.long(), values)
        return whole

    def of_inputs(self, values: torch.Tensor) -> torch.Tensor:
        """Repeat a value of each group, [outputs, groups], for each input of the group: [outputs, inputs].

        Values of a single group are returned as they are, [outputs, 1].
        """
        if values.shape[1] == 1:
            return values
        return values.repeat_interleave(self.group, 1)[:, : self.shape[1]]


def join_numbers(parts: Sequence[BlockNumbers]) -> list[BlockNumbers]:
    """Return the matrices with neighbours joined by their rows where they can be one."""
    joined: list[list[BlockNumbers]] = []
    for part in parts:
        if joined and joined[-1][-1].joins(part):
            joined[-1].append(part)
        else:
            joined.append([part])
    return [_concatenation(group) for group in joined]


def _concatenation(parts: Sequence[BlockNumbers]) -> BlockNumbers:
    if len(parts) == 1:
        return parts[0]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        parts[0],
        numbers=torch.cat([part.numbers for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
    )
