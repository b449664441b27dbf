"""Ragged batches in the form kernels take them: pieces cut into chunks at absolute multiples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mamba_kernels.scan_inputs import ScanInputs
from mamba_kernels.slot_plan import IntArray
from mamba_kernels.ssd_prefill import ChunkPlan

CPU = torch.device("cpu")


@dataclass
class PiecePlan:
    """One prefill piece: `length` tokens after `done` ones, checkpoints {depth: slot}."""

    done: int
    length: int
    slot_in: int
    slot_out: int
    checkpoints: dict[int, int]


def ints(values: Any) -> IntArray:
    return np.array(values, dtype=np.int32)


def chunk_plan(
    pieces: list[PiecePlan], chunk_size: int, noise: IntArray | None = None, device: torch.device = CPU
) -> ChunkPlan:
    """Build a plan. noise: [T] as of `ChunkPlan.build`."""
    start, length, sequence, rank, track, base = [], [], [], [], [], 0
    for index, piece in enumerate(pieces):
        end = piece.done + piece.length
        cuts = {d for d in range(piece.done + 1, end) if d % chunk_size == 0} | set(piece.checkpoints) | {end}
        before = piece.done
        for order, cut in enumerate(sorted(cuts)):
            start.append(base + before - piece.done)
            length.append(cut - before)
            sequence.append(index)
            rank.append(order)
            track.append(piece.checkpoints.get(cut, -1))
            before = cut
        base += piece.length
    return ChunkPlan.build(
        chunk_start=ints(start),
        chunk_len=ints(length),
        chunk_sequence=ints(sequence),
        chunk_rank=ints(rank),
        chunk_track=ints(track),
        slot_in=ints([piece.slot_in for piece in pieces]),
        slot_out=ints([piece.slot_out for piece in pieces]),
        piece_start=ints(np.cumsum([0, *(piece.length for piece in pieces)])),
        chunk_size=chunk_size,
        device=device,
        noise=noise,
    )


def poisoned(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return the memory that shows up in every result it leaks into."""
    return torch.full(shape, float("nan"), dtype=dtype)


def strided_cache(slabs: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a NaN-poisoned [slabs, *shape] part of a wider allocation, like the arena's views."""
    size = int(np.prod(shape))
    return poisoned(slabs, size + 7, dtype=dtype)[:, 3 : 3 + size].unflatten(1, shape)


@dataclass
class Mixer:
    """Random tensors of one mixer, T rows."""

    H: int
    P: int
    N: int
    G: int
    T: int
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def __post_init__(self) -> None:
        g = torch.Generator().manual_seed(self.seed)

        def rand(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64).to(self.dtype)

        self.x, self.dt = rand(self.T, self.H, self.P), rand(self.T, self.H)
        self.B, self.C = rand(self.T, self.G, self.N), rand(self.T, self.G, self.N)
        self.A = -torch.exp(rand(self.H))
        self.D, self.dt_bias = rand(self.H), rand(self.H)

    def inputs(self, limit: tuple[float, float]) -> ScanInputs:
        return ScanInputs(self.x, self.dt, self.A, self.B, self.C, self.D, self.dt_bias, limit)
