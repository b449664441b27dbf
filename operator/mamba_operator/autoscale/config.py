"""`AutoscalerConfig`: targets and constants of the autoscaler. Frozen, and recorded with each decision."""

from typing import Annotated

import msgspec

HISTORY_DELAYS = 12.0
"""Number of scale-down delays after which the weight of past traffic has decayed to 1/e."""
Share = Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]


class AutoscalerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The targets for the engines of one role, and constants of the autoscaler.

    The first seven fields, `history` and `start_deadline` follow from the spec and the role.
    """

    min_replicas: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Smallest number of engines; with 0 all stop after `scale_down_delay` without a request."""
    max_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Largest number of engines."""
    first: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Smallest number of engines that serve; the first request starts this many."""
    ttft_target: float | None = None
    """Target for the seconds to the first token; None = requests may wait `wait_target` for their turn."""
    tpot_target: float | None = None
    """Target for the seconds per output token; None = no bound."""
    scale_down_delay: float = 300.0
    """Seconds for which the largest recommendation stays in force."""

    bypassed: bool = False
    """Whether some requests need none of these engines, as short prompts need no prefill engine. The goals
    below are shares of all requests, so such requests count as served in time."""
    wait_target: float = 2.0
    """Seconds that a prompt may wait without a `ttft_target`."""
    grow_goal: Share = 0.96
    """Share of requests within the targets below which a fleet is too small."""
    keep_goal: Share = 0.975
    """Share of requests within the targets that a fleet must keep with one engine less, before it shrinks."""
    grow_use: Share = 0.85
    """Share of slots and pages that may be used before the fleet grows."""
    grow_time: Share = 1.0
    """Share of an engine's measured capacity that may be used before the fleet grows."""
    keep_use: Share = 0.70
    """Share of the remaining engines that may be used, before the fleet shrinks."""
    history: float = 3600.0
    """Seconds after which the weight of past traffic has decayed to 1/e: `history_of` the scale-down
    delay."""
    rises: Share = 0.5
    """Part of `history` after which the weight of a rise of the load has decayed to 1/e."""
    fast: float = 30.0
    """Time constant, in seconds, of the smoothed load that growth follows."""
    slow: float = 180.0
    """Time constant, in seconds, of a second smoothed load: the load rises where `fast` is above it."""
    first_start: float = 120.0
    """Assumed seconds of an engine's start, before one was observed."""
    start_patience: float = 3.0
    """Multiple of the usual start time after which a start counts as stuck, but `start_timeout` at least."""
    start_timeout: float = 600.0
    """Smallest number of seconds after which a start counts as stuck."""
    start_deadline: float = 1800.0
    """Seconds for which a pod that was never ready counts as starting; the deployment is not idle
    meanwhile."""
    longest_gap: float = 60.0
    """Largest number of seconds counted between two observations; longer gaps come from clock changes or
    outages."""

    @property
    def lowest(self) -> int:
        """Smallest number of engines that serve requests."""
        return max(self.first, self.min_replicas)


def history_of(scale_down_delay: float) -> float:
    """Return the time constant of the history, in seconds: twelve scale-down delays."""
    return HISTORY_DELAYS * max(scale_down_delay, 1.0)
