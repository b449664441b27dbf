"""Where checkpoints are placed in a prompt: pure arithmetic over depths.

In a prompt ends and branches come first, then track-interval multiples as far as the cap per path allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Depths at which a prefill leaves checkpoints, ascending, each a multiple of the page size."""

    required: tuple[int, ...]
    """Branch point, turn boundary, last page before the end: worth evicting another checkpoint for."""
    optional: tuple[int, ...]
    """Track-interval multiples: taken from free slots, or from a checkpoint worth less."""

    @property
    def depths(self) -> tuple[int, ...]:
        """Required and optional ones together."""
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
    """Checkpoint depths for a prompt of `prompt` tokens resumed at `resumed`.

    `branches`: where other prompts are known to part from it, the most important first; `turn_boundary`:
    the depth before the generation prompt, 0 = none; `cap`: most new checkpoints of this path.
    """

    def floor(depth: int) -> int:
        return depth // page_size * page_size

    last = floor(prompt - 1)
    wanted = [last, floor(min(turn_boundary, last)), *(floor(min(depth, last)) for depth in branches)]
    required: list[int] = []
    for depth in wanted:
        if depth > resumed and depth not in required and len(required) < cap:
            required.append(depth)
    step = max(track_interval, page_size)
    grid = [d for d in range(step, last + 1, step) if d > resumed and d not in required]
    room = cap - len(required)
    if room < len(grid):
        grid = _from_the_end(grid, room)
    return Placement(tuple(sorted(required)), tuple(grid))


def _from_the_end(grid: list[int], room: int) -> list[int]:
    """`room` of the depths of `grid`, ascending, their distances from its end in geometric progression.

    A later prompt leaves this one at an unknown depth. With equal ratios what it then has to recompute is at
    most that ratio times what it would have to compute anyway, however early or late it leaves.
    """
    ratio = (len(grid) + 1) ** (1 / max(1, room))
    chosen: list[int] = []
    index = len(grid)
    for i in range(room):
        index = min(index - 1, len(grid) - round(ratio**i))
        chosen.append(grid[index])
    return chosen[::-1]
