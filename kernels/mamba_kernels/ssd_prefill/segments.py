"""Segments of long pieces that are scanned in parallel, where the heads alone are too few for a GPU.

The contribution of each segment to the state is computed first, then the state from which each segment
starts, then all segments are scanned at once: 1.5 times the work, done by several times as many programs.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch

from mamba_kernels.slot_plan import HostIntegers

LEAST_CHUNKS = 4
"""Smallest number of chunks of a segment: its initial state must cost little compared with its scan."""


@dataclass(frozen=True, slots=True)
class SegmentCuts:
    """Where m long pieces of prompts are cut into q segments, as host arrays.

    `Segments` has the same fields on the device, with their descriptions.
    """

    segment_chunk: HostIntegers
    routes: HostIntegers
    piece_segment: HostIntegers

    @classmethod
    def cut(cls, piece_chunk: HostIntegers, targets: HostIntegers, most: int) -> "SegmentCuts | None":
        """Cut each piece into at most `most` segments of similar length; return None if all are too short.

        `piece_chunk` is the first chunk of each piece, [m + 1], and `targets` are the target slots of the
        pieces, [m]. A piece's cuts follow from its own length alone.
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

    def arrays_by_name(self, most: int) -> dict[str, HostIntegers]:
        """Return the arrays under names that are unique in a step; `most` is the argument of `cut`."""
        return {f"{most} segments {field.name}": getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Segments:
    """Division of m pieces into q segments, as int32 tensors on the device."""

    count: int
    """Number of segments, q."""
    segment_chunk: torch.Tensor
    """[q + 1] first chunk of each segment"""
    routes: torch.Tensor
    """[2, q] number of each segment, at which its first state lies among those of all segments; target slot
    of the piece that ends with the segment, -1 if none does"""
    piece_segment: torch.Tensor
    """[m + 1] first segment of each piece"""
