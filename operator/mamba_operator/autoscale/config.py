"""`AutoscalerConfig`: what an autoscaler is to hold, and the constants it decides with. Frozen; recorded,
too."""

from typing import Annotated

import msgspec

PAST = 12.0
"""Delays after which what traffic did counts for 1/e."""
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class AutoscalerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of one MambaDeployment. The first six are its fields; the others are the same for all."""

    min_replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Fewest engines; with 0 they stop when nothing came for `scale_down_delay`."""
    max_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Most engines."""
    first: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Fewest engines that serve, and as many as the first request starts."""
    ttft_target: float | None = None
    """Seconds to the first token; None = requests may wait `wait_target` for their turn."""
    tpot_target: float | None = None
    """Seconds per output token; None = no bound."""
    scale_down_delay: float = 300.0
    """Seconds for which the largest recommendation holds."""

    wait_target: float = 2.0
    """Seconds a prompt may wait without a ttft_target."""
    grow_goal: Share = 0.96
    """Share of requests within the targets below which a fleet is too small."""
    keep_goal: Share = 0.975
    """Share with which an engine less must still do, before it is given up."""
    grow_use: Share = 0.85
    """Share of slots and pages that may be used before the fleet grows."""
    grow_time: Share = 1.0
    """Share of the time that engines were seen to make use of, before the fleet grows."""
    keep_use: Share = 0.70
    """Share that must do with an engine less, before it is given up."""
    history: float = 3600.0
    """Seconds after which what traffic did counts for 1/e; of an object, `history_of` its delay."""
    rises: Share = 0.5
    """Part of `history` after which a rise of the load counts for 1/e."""
    fast: float = 30.0
    """Time constant of the load that growth follows, in seconds."""
    slow: float = 180.0
    """Time constant of the load that its slope is taken against, in seconds."""
    first_start: float = 120.0
    """Seconds an engine is taken to need to start, before one was seen to."""
    start_patience: float = 3.0
    """Starts that take so many times longer than usual, and `start_timeout`, are not counted on any more."""
    start_timeout: float = 600.0
    """Seconds that a pod may take to be ready at least."""
    start_deadline: float = 1800.0
    """Seconds for which a pod that was never ready counts as one that starts; idleness begins after it."""
    longest_gap: float = 60.0
    """Seconds that two observations may lie apart; beyond, a clock was set or nobody looked."""

    @property
    def lowest(self) -> int:
        """Fewest engines that requests are served with."""
        return max(self.first, self.min_replicas)


def history_of(scale_down_delay: float) -> float:
    """Seconds for which the past of an object counts: twelve times as long as a recommendation holds."""
    return PAST * max(scale_down_delay, 1.0)
