"""Index arithmetic of the chunked scan and of the prefill convolution, built once per step for all layers.

A chunk is a run of rows of one sequence; chunks never cross sequences, and end at every checkpoint. All
inputs are host arrays, so building a plan never reads the device.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from mamba_kernels.packed_integers import send_together
from mamba_kernels.slot_plan import HostIntegers, IntArray, SlotPlan
from mamba_kernels.ssd_prefill.padded_chunks import PaddedChunks
from mamba_kernels.ssd_prefill.segments import SegmentCuts, Segments
from mamba_kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class DeviceChunks:
    """The n chunks of a batch's m pieces in the form that Triton kernels read: int32 on the device."""

    piece_chunk: torch.Tensor
    """[m + 1] first chunk of each piece"""
    chunk_start: torch.Tensor
    """[n + 1] first row of each chunk"""
    chunk_track: torch.Tensor
    """[n] slot of the checkpoint at the chunk's end, or -1"""
    chunk_piece: torch.Tensor
    """[n] piece of each chunk"""
    chunk_noise: torch.Tensor
    """[n] word by which the state at the chunk's end is rounded, if it is stored as float16"""


@dataclass(frozen=True)
class ChunkPlan:
    """Chunks of the prefill pieces of one batch: n chunks, m pieces, rows counted from the first piece.

    A backend takes the chunks in the form that it reads, which is computed at its first use.
    """

    tokens: int
    """Prefill rows: the pieces lie one after another in rows 0..tokens."""
    chunks: int
    longest_chunk: int
    """Number of rows of the longest chunk."""
    chunk_size: int
    device: torch.device
    slots: SlotPlan
    """Source slot of each piece, and target slot of its final state; tracking is per chunk, below."""
    host_chunks: Mapping[str, IntArray]
    """The arrays of `DeviceChunks` on the host."""
    chunk_rank: IntArray
    """[n] number of the chunk within its piece, on the host."""
    piece_start: list[int]
    """[m + 1] first row of each piece."""
    host_noise: IntArray | None
    """[T] int32 of `noise_words`, for the state after each row; None = zeros."""
    device_noise: torch.Tensor | None = None
    """[T] int32: the noise on the device if it was sent already."""
    resident: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The part of `integers` that was sent to the device already."""
    host_cuts: dict[int, SegmentCuts | None] = field(default_factory=dict)
    """Segments on the host, computed by `integers` and `segments`, by the largest number per piece."""
    cuts: dict[int, Segments | None] = field(default_factory=dict)
    """Segments on the device, computed by `segments`, by the largest number per piece."""
    parts: "dict[int, list[tuple[slice, ChunkPlan]]]" = field(default_factory=dict)
    """Results of `split`, by the largest number of chunks of a part."""

    @classmethod
    def build(
        cls,
        *,
        chunk_start: IntArray,
        chunk_len: IntArray,
        chunk_sequence: IntArray,
        chunk_rank: IntArray,
        chunk_track: IntArray,
        slot_in: IntArray,
        slot_out: IntArray,
        piece_start: IntArray,
        chunk_size: int,
        device: torch.device,
        noise: IntArray | None = None,
    ) -> "ChunkPlan":
        """Plan m pieces of n chunks.

        `slot_in` and `slot_out` are [m]; `piece_start` are the first rows of the pieces, [m+1], beginning
        with 0. The arrays `chunk_*` are [n], with `chunk_sequence` counted from the first piece and
        `chunk_start` from row 0. `noise` is [T] as for `SlotPlan.build`, for the state after each row.
        """
        tokens, chunks = int(piece_start[-1]), len(chunk_start)
        last = np.flatnonzero(np.diff(chunk_sequence, append=-1))
        chunk_noise = np.zeros(chunks, np.int32) if noise is None else noise[chunk_start + chunk_len - 1]
        return cls(
            tokens=tokens,
            chunks=chunks,
            longest_chunk=int(chunk_len.max()),
            chunk_size=chunk_size,
            device=device,
            slots=SlotPlan.build(
                slot_in, slot_out, np.full_like(slot_in, -1), device, noise=chunk_noise[last]
            ),
            host_chunks={
                "piece_chunk": np.append(0, last + 1).astype(np.int32),
                "chunk_start": np.append(chunk_start, tokens).astype(np.int32),
                "chunk_track": np.array(chunk_track, np.int32),
                "chunk_piece": np.array(chunk_sequence, np.int32),
                "chunk_noise": chunk_noise,
            },
            chunk_rank=chunk_rank,
            piece_start=piece_start.tolist(),
            host_noise=noise,
        )

    def integers(self, segments: Iterable[int] = ()) -> dict[str, HostIntegers]:
        """Return by name the arrays that kernels read.

        The caller sends them to the device with others, and passes the tensors to `with_resident`.
        `segments` are the arguments with which the method `segments` will be called.
        """
        arrays = {**self.host_chunks, "routes": self.slots.host}
        for most in segments:
            if (cut := self._cut(most)) is not None:
                arrays |= cut.arrays_by_name(most)
        return arrays

    def with_resident(
        self, resident: Mapping[str, torch.Tensor], device_noise: torch.Tensor | None
    ) -> "ChunkPlan":
        """Return this plan with the arrays of `integers` on the device, and with this `device_noise`."""
        slots = replace(self.slots, resident=resident["routes"])
        return replace(self, slots=slots, resident=resident, device_noise=device_noise)

    def segments(self, most: int) -> Segments | None:
        """Cut the pieces into at most `most` segments each, once for all layers.

        The result is None if all pieces are too short.
        """
        if most not in self.cuts:
            cut = self._cut(most)
            self.cuts[most] = None
            if cut is not None:
                arrays = cut.arrays_by_name(most)
                sent = arrays.keys() <= self.resident.keys()
                tensors = self.resident if sent else send_together(arrays, self.device)
                count = cut.routes.shape[1]
                self.cuts[most] = Segments(count, *(tensors[name] for name in arrays))
        return self.cuts[most]

    def split(self, most_chunks: int) -> "list[tuple[slice, ChunkPlan]]":
        """Split into plans of at most `most_chunks` chunks, or of one piece, each with its rows.

        The result is computed once for all layers.
        """
        if self.chunks <= most_chunks or len(self.host_chunks["piece_chunk"]) == 2:
            return [(slice(0, self.tokens), self)]
        if most_chunks not in self.parts:
            self.parts[most_chunks] = [self._part(*pieces) for pieces in self._together(most_chunks)]
        return self.parts[most_chunks]

    def checkpoints(self, piece: int) -> list[tuple[int, int]]:
        """Return (rows of the piece up to the checkpoint, slot) for each checkpoint inside `piece`."""
        return self._checkpoints[piece]

    @cached_property
    def padded(self) -> PaddedChunks:
        """The chunks in the form that the reference reads."""
        return PaddedChunks.build(
            bounds=self.host_chunks["chunk_start"],
            last=self.host_chunks["piece_chunk"][1:] - 1,
            rank=self.chunk_rank,
            track=self.host_chunks["chunk_track"],
            chunk_size=self.chunk_size,
            device=self.device,
        )

    @cached_property
    def on_device(self) -> DeviceChunks:
        """The chunks in the form that kernels read."""
        tensors = self.resident or send_together(self.host_chunks, self.device)
        return DeviceChunks(**{name: tensors[name] for name in self.host_chunks})

    @cached_property
    def row_noise(self) -> torch.Tensor:
        """`host_noise` on the device, [T] int32."""
        if self.device_noise is not None:
            return self.device_noise
        if self.host_noise is None:
            return torch.zeros(self.tokens, dtype=torch.int32, device=self.device)
        return to_device(torch.from_numpy(np.ascontiguousarray(self.host_noise)), self.device)

    @cached_property
    def piece_chunk(self) -> torch.Tensor:
        """First chunk of each piece, on the host, [m + 1] int32."""
        return torch.from_numpy(self.host_chunks["piece_chunk"])

    @cached_property
    def chunk_start(self) -> torch.Tensor:
        """First row of each chunk, on the host, [n + 1] int32."""
        return torch.from_numpy(self.host_chunks["chunk_start"])

    @cached_property
    def chunk_track(self) -> torch.Tensor:
        """Slot of the checkpoint at each chunk's end, on the host, [n] int32; -1 = none."""
        return torch.from_numpy(self.host_chunks["chunk_track"])

    @cached_property
    def chunk_noise(self) -> torch.Tensor:
        """Word of `noise_words` for the state at each chunk's end, on the host, [n] int32."""
        return torch.from_numpy(self.host_chunks["chunk_noise"])

    @cached_property
    def tracked_slot_list(self) -> list[int]:
        """Slots of the checkpoints, in the order of their chunks."""
        track = self.host_chunks["chunk_track"]
        slots: list[int] = track[track >= 0].tolist()
        return slots

    @cached_property
    def _checkpoints(self) -> list[list[tuple[int, int]]]:
        """Checkpoints of each piece, as (rows, slot)."""
        checkpoints = [list[tuple[int, int]]() for _ in self.piece_start]
        tracked = np.flatnonzero(self.host_chunks["chunk_track"] >= 0)
        pieces = self.host_chunks["chunk_piece"][tracked].tolist()
        ends = self.host_chunks["chunk_start"][tracked + 1].tolist()
        for piece, end, slot in zip(pieces, ends, self.tracked_slot_list, strict=True):
            checkpoints[piece].append((end - self.piece_start[piece], slot))
        return checkpoints

    def _cut(self, most: int) -> SegmentCuts | None:
        if most not in self.host_cuts:
            targets = self.slots.host[1]
            self.host_cuts[most] = SegmentCuts.cut(self.host_chunks["piece_chunk"], targets, most)
        return self.host_cuts[most]

    def _together(self, most_chunks: int) -> list[tuple[int, int]]:
        """Return the first piece and the end of each part."""
        groups, first, starts = list[tuple[int, int]](), 0, self.host_chunks["piece_chunk"].tolist()
        pieces = len(starts) - 1
        for piece in range(1, pieces):
            if starts[piece + 1] - starts[first] > most_chunks:
                groups.append((first, piece))
                first = piece
        return [*groups, (first, pieces)]

    def _part(self, first: int, end: int) -> "tuple[slice, ChunkPlan]":
        """Return the rows of pieces `first` to `end`, and the plan of these pieces."""
        rows = slice(self.piece_start[first], self.piece_start[end])
        starts, bounds = self.host_chunks["piece_chunk"], self.host_chunks["chunk_start"]
        chunks = slice(int(starts[first]), int(starts[end]))
        sources, targets, _ = self.slots.host
        plan = ChunkPlan.build(
            chunk_start=bounds[:-1][chunks] - rows.start,
            chunk_len=np.diff(bounds)[chunks],
            chunk_sequence=self.host_chunks["chunk_piece"][chunks] - first,
            chunk_rank=self.chunk_rank[chunks],
            chunk_track=self.host_chunks["chunk_track"][chunks],
            slot_in=sources[first:end],
            slot_out=targets[first:end],
            piece_start=np.array(self.piece_start[first : end + 1]) - rows.start,
            chunk_size=self.chunk_size,
            device=self.device,
            noise=None if self.host_noise is None else self.host_noise[rows],
        )
        return rows, plan
