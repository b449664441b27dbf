"""Long pieces cut into segments of chunks that are scanned side by side, where heads alone are too few.

Each segment's own contribution to the state is found first, then what every segment starts from, then all of
them are scanned at once: half as much work again, done by several times as many programs.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch

from mamba_kernels.slot_plan import HostIntegers

LEAST_CHUNKS = 4
"""Of a segment: what it begins with must be little beside what it does."""


@dataclass(frozen=True, slots=True)
class SegmentCuts:
    """q segments of m pieces, on the host; the fields are those of `Segments`."""

    segment_chunk: HostIntegers
    routes: HostIntegers
    piece_segment: HostIntegers

    @classmethod
    def cut(cls, piece_chunk: HostIntegers, targets: HostIntegers, most: int) -> "SegmentCuts | None":
        """Cut each piece into at most `most` segments of about equal numbers of chunks; None when no piece is
        long enough. `piece_chunk` [m + 1] first chunk of each piece; `targets` [m] their slots.

        A piece's cuts follow from its own length alone.
        """
        lengths = np.diff(piece_chunk)
        counts = np.clip(lengths // LEAST_CHUNKS, 1, max(1, most))
        if (counts == 1).all():
            return None
        starts = [
            first + np.arange(count) * length // count
            for first, length, count in zip(piece_chunk[:-1], lengths, counts, strict=True)
        ]
        last = np.cumsum(counts) - 1
        total = int(counts.sum())
        target = np.full(total, -1)
        target[last] = targets
        return cls(
            segment_chunk=np.append(np.concatenate(starts), piece_chunk[-1]),
            routes=np.stack([np.arange(total), target]),
            piece_segment=np.append(0, last + 1),
        )

    def named(self, most: int) -> dict[str, HostIntegers]:
        """Name the arrays among others of a step; `most` as `cut` was given it."""
        return {f"{most} segments {field.name}": getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Segments:
    """q segments of m pieces; int32 on the device."""

    count: int
    segment_chunk: torch.Tensor
    """[q + 1] first chunk of each segment"""
    routes: torch.Tensor
    """[2, q] the segment, where its first state lies; the piece's target slot for its last one, else -1"""
    piece_segment: torch.Tensor
    """[m + 1] first segment of each piece"""
