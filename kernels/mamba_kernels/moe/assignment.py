"""Rows gathered on the device into blocks of one expert each, in shapes that n, k and E alone decide."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Assignment:
    """b blocks of r places; every pair (row, one of its k experts) has a place in a block of its expert."""

    pair: torch.Tensor
    """[b * r] int32: the pair in a place, row * k + which; -1 = the place is empty"""
    expert: torch.Tensor
    """[b] int32: of the block; -1 = nobody is in it. Those come last."""

    @classmethod
    def of(cls, experts: torch.Tensor, count: int, rows: int) -> "Assignment":
        """experts: [n, k] int32 of `count` experts; `rows`: r. Never reads the device."""
        pairs = experts.numel()
        device = experts.device
        chosen, order = experts.flatten().sort(stable=True)
        number = torch.zeros(count, dtype=torch.int32, device=device)
        number.scatter_add_(0, chosen.long(), torch.ones_like(chosen))
        blocks = (number + rows - 1).div(rows, rounding_mode="floor")
        first_block = blocks.cumsum(0) - blocks
        first_pair = number.cumsum(0) - number
        of_pair = chosen.long()
        rank = torch.arange(pairs, device=device) - first_pair[of_pair]
        most = most_blocks(pairs, count, rows)
        pair = torch.full((most * rows,), -1, dtype=torch.int32, device=device)
        pair.scatter_(0, first_block[of_pair] * rows + rank, order.to(torch.int32))
        expert = torch.full((most,), -1, dtype=torch.int32, device=device)
        # Of a block all pairs have one expert, so whoever writes last writes the same.
        expert.scatter_(0, first_block[of_pair] + rank.div(rows, rounding_mode="floor"), chosen)
        return cls(pair, expert)


def most_blocks(pairs: int, count: int, rows: int) -> int:
    """However the pairs are spread: each expert that has some may have one block that is not full."""
    return min(pairs, (pairs + min(count, pairs) * (rows - 1)) // rows)
