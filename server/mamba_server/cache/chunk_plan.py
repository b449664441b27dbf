"""Chunk boundaries of a prefill piece: absolute multiples of the chunk size, plus every checkpoint depth.

Boundaries never depend on how the prompt was split or on the rest of the batch, so a state at a depth
is one and the same however it was reached (P3: any split, any batch, one state).
"""

from collections.abc import Iterable


def chunk_ends(start: int, stop: int, chunk: int, forced: Iterable[int] = ()) -> list[int]:
    """Depths at which the chunks of tokens [start, stop) end, ascending; the last is `stop`.

    `forced` depths outside (start, stop] are another piece's and ignored.
    """
    ends = set(range((start // chunk + 1) * chunk, stop, chunk))
    ends.update(depth for depth in forced if start < depth <= stop)
    ends.add(stop)
    return sorted(ends)


def aligned_piece(start: int, remaining: int, budget: int, grain: int) -> int:
    """How many of `remaining` tokens to take within `budget`, so that a piece ends on a multiple of `grain`
    unless it ends the prompt. 0 if not even one grain fits: splits never make a boundary of their own (P3).
    """
    if remaining <= budget:
        return remaining
    end = (start + budget) // grain * grain
    return max(0, end - start)
