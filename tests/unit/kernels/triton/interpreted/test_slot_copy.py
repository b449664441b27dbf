"""Whole slots move, to the bit and beside nothing, in one arena or between two."""

import pytest
import torch

from mamba_kernels.slot_copy import reference
from mamba_kernels.slot_copy.triton import slot_copy


def arena(slabs: int, size: int, seed: int, offset: int = 0) -> torch.Tensor:
    """Return [slabs, size] bytes as a part of wider rows."""
    g = torch.Generator().manual_seed(seed)
    memory = torch.randint(0, 256, (slabs, size + 48), generator=g, dtype=torch.uint8)
    return memory[:, offset : offset + size]


@pytest.mark.parametrize(("size", "offset"), [(1, 0), (63, 1), (100, 4), (257, 0), (16400, 16), (40000, 2)])
def test_slots_move_between_arenas(size: int, offset: int) -> None:
    source, target = arena(6, size, 1, offset), arena(5, size, 2, offset)
    before, expected = source.clone(), target.clone()
    routes = torch.tensor([[5, 1, -1, 3], [2, 4, 1, -1]])
    reference.slot_copy(source, expected, routes)
    slot_copy(source, target, routes)
    assert torch.equal(target[1:], expected[1:])
    assert torch.equal(target[[2, 4]], before[[5, 1]])
    assert torch.equal(source, before)


def test_slots_move_within_an_arena() -> None:
    memory = arena(6, 512, 3)
    before = memory.clone()
    slot_copy(memory, memory, torch.tensor([[1, 2], [4, 5]]))
    assert torch.equal(memory, before[[0, 1, 2, 3, 1, 2]])
