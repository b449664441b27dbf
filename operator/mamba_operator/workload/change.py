"""`workload_change`: decides when another strategy for measured traffic is announced and applied. Pure.

Another strategy (the rival) has to be better by `MARGIN` for the time `HELD`. It is then announced, and
applied after the time `NOTICE` if it is still better. The same rule later protects the new strategy against
the next rival.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite

from mamba_api.v1alpha1 import ProposedStrategy
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.recorded_status import parse_timestamp
from mamba_planner.engine_plan import Alternative

MARGIN = 0.1
"""Share of the expected throughput by which a rival has to be better: more than the largest error of the
estimate in 200 cases (7.1 %, `benchmarks.planner`)."""
HELD = timedelta(minutes=30)
"""Time for which a rival has to be better before it is announced."""
NOTICE = timedelta(minutes=10)
"""Time from the announcement to the change."""


@dataclass(frozen=True, slots=True)
class WorkloadChange:
    """Decision about a strategy that would serve the measured traffic better."""

    proposed: ProposedStrategy | None = None
    """Rival that is better by `MARGIN`. It is announced once it has a time at which it takes effect."""
    take: bool = False
    """Whether the rival becomes the strategy now."""
    requeue_after: float | None = None
    """Seconds until this decision changes by time alone; None = it does not."""


def workload_change(
    old: ProposedStrategy | None,
    best: Alternative | None,
    *,
    measured: bool,
    now: datetime,
    may_take: bool = True,
) -> WorkloadChange:
    """Decide about the best rival.

    Args:
        old: the previous proposal.
        best: strategy that would do better now and that running engines can apply; None = there is none.
        measured: whether engines measure the traffic now. While they do not, no proposal begins.
        now: the time, with a time zone. If the clock was set back, the wait restarts and gets no longer.
        may_take: whether engines may be changed now; a change that is due waits until they may.
    """
    if best is None or best.gain < MARGIN:
        return WorkloadChange()
    if old is None or old.strategy != best.strategy:
        return (
            WorkloadChange(_begun(best, now), requeue_after=HELD.total_seconds())
            if measured
            else WorkloadChange()
        )
    since = parse_timestamp(old.since)
    takes = parse_timestamp(old.takes_effect) if old.takes_effect is not None else None
    if not measured:
        return WorkloadChange(old)
    if takes is None:
        if since is None or since > now:
            return WorkloadChange(_begun(best, now), requeue_after=HELD.total_seconds())
        if now - since < HELD:
            return WorkloadChange(old, requeue_after=(since + HELD - now).total_seconds())
        return _announced(old, best, now)
    if takes - now > NOTICE:
        return _announced(old, best, now)
    if now < takes:
        return WorkloadChange(old, requeue_after=(takes - now).total_seconds())
    return WorkloadChange(take=True) if may_take else WorkloadChange(old)


def _begun(best: Alternative, now: datetime) -> ProposedStrategy:
    return ProposedStrategy(strategy=best.strategy, gain=gained(best), since=timestamp(now))


def _announced(old: ProposedStrategy, best: Alternative, now: datetime) -> WorkloadChange:
    changes = {"takes_effect": timestamp(now + NOTICE), "gain": gained(best)}
    return WorkloadChange(old.model_copy(update=changes), requeue_after=NOTICE.total_seconds())


def gained(best: Alternative) -> str:
    """Return the gain as text for users, such as 12%, or that only the new strategy fits."""
    return f"{best.gain:.0%}" if isfinite(best.gain) else "it alone fits"
