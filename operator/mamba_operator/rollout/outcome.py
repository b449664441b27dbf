"""`rollout_outcome`: how a roll-out of the engines ends, from numbers alone. Pure.

The one place that decides whether the new revision is gone on with, kept though something is the matter, or
taken back. `rollback` reads the facts from the cluster's objects and carries the decision to the plan.

A revision is taken back for what is its own doing: all of its engines that got a node fail, or most of them
do on two nodes or more. One engine that fails beside others that serve is the doing of its node, and the
others stay. That there is no room, or a quota, keeps an engine from starting and says nothing about the
revision, nor do engines that are late and do not fail: it goes back for that only at the progress deadline,
and only while none of it serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE = 60.0
"""Seconds that a new engine may fail without a break: a registry or a Secret may come a moment late."""


@dataclass(frozen=True, slots=True)
class FailingEngine:
    """An engine of the new revision that cannot start for a reason of its own."""

    node: str
    """Name of its node; empty while nobody knows it."""
    seconds: float
    """For how long it has been failing without a break."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """A roll-out at one moment."""

    started: int
    """Engines of the new revision that have a node."""
    serving: int
    """Engines of the new revision that answer."""
    failing: Sequence[FailingEngine] = ()
    """Those of them that do not answer and fail."""
    rejected: tuple[str, str] | None = None
    """Reason and message, where requests say that the new revision is worse than the old one."""
    overdue: tuple[str, str] | None = None
    """Reason and message, once the progress deadline is over."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """What becomes of the new revision."""

    taken_back: tuple[str, str] | None = None
    """Reason and message; None: the new revision stays."""
    requeue_after: float | None = None
    """Seconds until an engine has been failing for `PATIENCE`."""


def rollout_outcome(facts: RolloutFacts) -> RolloutOutcome:
    """Decide what becomes of the new revision."""
    if facts.rejected is not None:
        return RolloutOutcome(taken_back=facts.rejected)
    lost = [one for one in facts.failing if one.seconds >= PATIENCE]
    if lost and _is_the_revision(len(lost), {one.node for one in lost}, facts.started):
        return RolloutOutcome(taken_back=(lost[0].reason, lost[0].message))
    if facts.overdue is not None and facts.serving == 0:
        return RolloutOutcome(taken_back=facts.overdue)
    left = [PATIENCE - one.seconds for one in facts.failing if one.seconds < PATIENCE]
    return RolloutOutcome(requeue_after=min(left, default=None))


def _is_the_revision(bad: int, nodes: set[str], started: int) -> bool:
    """Tell whether so many bad engines of those that started speak against the revision, not a node."""
    return bad >= started or (2 * bad > started and len(nodes) > 1)
