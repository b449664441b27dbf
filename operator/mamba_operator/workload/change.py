"""`workload_change`: when another strategy is announced for measured traffic, and when it is taken. Pure.

A rival has to win by `MARGIN` for `HELD`, is announced, and is taken `NOTICE` later if it wins still. What
was taken is guarded in the same way against what would be next.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import isfinite

from mamba_api.v1alpha1 import ProposedStrategy
from mamba_api.v1alpha1.conditions import timestamp
from mamba_operator.objects.timestamp import parse_timestamp
from mamba_planner.alternative import Alternative

MARGIN = 0.1
"""Share of expected throughput by which a rival has to win: more than the estimate was off in the worst of
200 cases (7.1 %, `benchmarks.planner`)."""
HELD = timedelta(minutes=30)
"""For which it has to."""
NOTICE = timedelta(minutes=10)
"""From the announcement to the change."""


@dataclass(frozen=True, slots=True)
class WorkloadChange:
    """What is to become of the strategy."""

    proposed: ProposedStrategy | None = None
    """Wins by enough, and is announced once it has a time at which it takes effect."""
    take: bool = False
    """The rival is the strategy from now on."""
    requeue_after: float | None = None
    """Seconds until time alone changes this."""


def workload_change(
    old: ProposedStrategy | None,
    best: Alternative | None,
    *,
    measured: bool,
    now: datetime,
    may_take: bool = True,
) -> WorkloadChange:
    """What to do about the best rival.

    Args:
        old: what was proposed before.
        best: what would do better now and can be told to running engines; None: nothing.
        measured: whether engines measure the traffic just now. While they do not, nothing begins.
        now: the time, with a time zone. Where it was set back, waiting begins anew; nothing waits longer.
        may_take: whether engines may be told now; what is due waits until they may.
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
    said = {"takes_effect": timestamp(now + NOTICE), "gain": gained(best)}
    return WorkloadChange(old.model_copy(update=said), requeue_after=NOTICE.total_seconds())


def gained(best: Alternative) -> str:
    """For people."""
    return f"{best.gain:.0%}" if isfinite(best.gain) else "it alone fits"
