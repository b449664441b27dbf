"""Where checkpoints of a prompt are placed: pure arithmetic over depths.

Ends and branches first, then track-interval multiples as far as the cap per path allows.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Depths at which a prefill leaves checkpoints, ascending, each a page multiple (P5)."""

    required: tuple[int, ...]
    """Branch point, turn boundary, last page before the end: worth evicting another checkpoint for."""
    optional: tuple[int, ...]
    """Track-interval multiples: taken from free slots, or from a checkpoint worth less."""

    @property
    def depths(self) -> tuple[int, ...]:
        """All of them."""
        return self.required + self.optional


def place(
    prompt: int,
    resumed: int,
    kv_depth: int,
    turn_boundary: int,
    page_size: int,
    track_interval: int,
    cap: int,
) -> Placement:
    """Checkpoint depths for a prompt of `prompt` tokens resumed at `resumed`.

    `kv_depth`: how far pages in the tree match (deeper than `resumed`: a branch point); `turn_boundary`: the
    depth before the generation prompt, 0 = none; `cap`: most new checkpoints of this path.
    """

    def floor(depth: int) -> int:
        return depth // page_size * page_size

    last = floor(prompt - 1)
    wanted = [last, floor(min(turn_boundary, last)), floor(min(kv_depth, last))]
    required: list[int] = []
    for depth in wanted:
        if depth > resumed and depth not in required and len(required) < cap:
            required.append(depth)
    step = max(track_interval, page_size)
    grid = [d for d in range(step, last + 1, step) if d > resumed and d not in required]
    room = cap - len(required)
    if room < len(grid):
        # Evenly spread, the deepest first: a later prompt leaves this one at an unknown depth.
        grid = [grid[(i + 1) * len(grid) // (room + 1)] for i in range(room)]
    return Placement(tuple(sorted(required)), tuple(sorted(set(grid))))
