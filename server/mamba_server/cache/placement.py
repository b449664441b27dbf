"""Depths of a prompt at which checkpoints are placed and chunks end: pure arithmetic.

Required checkpoints (ends and branches) come first, then track-interval multiples as far as the cap per path
allows. Chunks end at absolute multiples of the chunk size and at every checkpoint. No boundary depends on how
the prompt was split or on the rest of the batch, so the state at a depth is the same however it was reached
(P3: any split, any batch, one state).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """The depths at which a prefill leaves checkpoints, ascending; each is a multiple of the page size."""

    required: tuple[int, ...]
    """Branch points, turn boundary, last page before the end: each is worth evicting another checkpoint
    for."""
    optional: tuple[int, ...]
    """Track-interval multiples: they take free slots, or the slot of a checkpoint that is worth less."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Required and optional depths together."""
        return self.required + self.optional


def place(
    prompt: int,
    resumed: int,
    branches: Sequence[int],
    turn_boundary: int,
    page_size: int,
    track_interval: int,
    cap: int,
) -> Placement:
    """Return the checkpoint depths for a prompt of `prompt` tokens that resumes at `resumed`.

    `branches` are depths at which other prompts are known to diverge from this one, the most important first.
    `turn_boundary` is the depth before the generation prompt; 0 = none. `cap` is the largest number of new
    checkpoints of this path.
    """

    def floor(depth: int) -> int:
        return depth // page_size * page_size

    last = floor(prompt - 1)
    candidates = [last, floor(min(turn_boundary, last)), *(floor(min(depth, last)) for depth in branches)]
    required: list[int] = []
    for depth in candidates:
        if depth > resumed and depth not in required and len(required) < cap:
            required.append(depth)
    step = max(track_interval, page_size)
    grid = [d for d in range(step, last + 1, step) if d > resumed and d not in required]
    room = cap - len(required)
    if room < len(grid):
        grid = _from_the_end(grid, room)
    return Placement(tuple(sorted(required)), tuple(grid))


def _from_the_end(grid: list[int], room: int) -> list[int]:
    """Choose `room` depths of `grid`, ascending; their distances from its end form a geometric progression.

    A later prompt diverges from this one at an unknown depth. With equal ratios, the tokens that it then has
    to recompute are at most that ratio times those that it has to compute anyway, at whatever depth it
    diverges.
    """
    ratio = (len(grid) + 1) ** (1 / max(1, room))
    chosen: list[int] = []
    index = len(grid)
    for i in range(room):
        index = min(index - 1, len(grid) - round(ratio**i))
        chosen.append(grid[index])
    return chosen[::-1]


def chunk_ends(start: int, stop: int, chunk: int, forced: Iterable[int] = ()) -> list[int]:
    """Return the depths at which the chunks of tokens [start, stop) end, ascending; the last is `stop`.

    `forced` depths outside (start, stop] belong to another piece and are ignored.
    """
    ends = set(range((start // chunk + 1) * chunk, stop, chunk))
    ends.update(depth for depth in forced if start < depth <= stop)
    ends.add(stop)
    return sorted(ends)


def aligned_piece(start: int, remaining: int, budget: int, grain: int) -> int:
    """Return how many of `remaining` tokens fit `budget`, such that the piece ends on a multiple of `grain`.

    A piece that ends the prompt may end anywhere. The result is 0 if the budget does not reach the next
    multiple: a split never makes a boundary of its own (P3).
    """
    if remaining <= budget:
        return remaining
    end = (start + budget) // grain * grain
    return max(0, end - start)
