"""`rollout_outcome`: the outcome of a roll-out of the engines, from numbers alone. Pure.

Only this module decides whether the new revision continues, stays despite a problem, or is taken back.
`rollback` reads the facts from the cluster's objects and passes the decision to the reconcile pass.

A revision is taken back for failures of its own: all of its engines that got a node fail, or most of them
do on two nodes or more. One engine that fails while others serve fails because of its node, and the others
stay. Missing room or a full quota keeps an engine from starting and says nothing about the revision, and
neither do engines that are late but do not fail: the revision is taken back for these only at the progress
deadline, and only while none of its engines serves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_FAILING_SECONDS = 60.0
"""Seconds that a new engine may fail without a break: a registry or a Secret may be available a bit later."""


@dataclass(frozen=True, slots=True)
class FailingEngine:
    """An engine of the new revision that cannot start for a reason of its own."""

    node: str
    """Name of its node; empty while it is unknown."""
    seconds: float
    """Seconds for which it has been failing without a break."""
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """The state of a roll-out at one moment."""

    started: int
    """Engines of the new revision that have a node."""
    serving: int
    """Engines of the new revision that answer."""
    failing: Sequence[FailingEngine] = ()
    """Started engines of the new revision that fail and do not answer."""
    rejected: tuple[str, str] | None = None
    """Reason and message if requests fail significantly more at the new revision than at the old one."""
    overdue: tuple[str, str] | None = None
    """Reason and message once the progress deadline has passed."""


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    """The decision about the new revision."""

    taken_back: tuple[str, str] | None = None
    """Reason and message of its removal; None = the new revision stays."""
    requeue_after: float | None = None
    """Seconds until an engine has been failing for `MAX_FAILING_SECONDS`."""


def rollout_outcome(facts: RolloutFacts) -> RolloutOutcome:
    """Decide whether the new revision stays."""
    if facts.rejected is not None:
        return RolloutOutcome(taken_back=facts.rejected)
    lost = [engine for engine in facts.failing if engine.seconds >= MAX_FAILING_SECONDS]
    if lost and _is_the_revision(len(lost), {engine.node for engine in lost}, facts.started):
        return RolloutOutcome(taken_back=(lost[0].reason, lost[0].message))
    if facts.overdue is not None and facts.serving == 0:
        return RolloutOutcome(taken_back=facts.overdue)
    remaining = [MAX_FAILING_SECONDS - engine.seconds for engine in facts.failing]
    return RolloutOutcome(requeue_after=min((seconds for seconds in remaining if seconds > 0), default=None))


def _is_the_revision(bad: int, nodes: set[str], started: int) -> bool:
    """Return whether `bad` of `started` engines indicate a bad revision rather than a bad node."""
    return bad >= started or (2 * bad > started and len(nodes) > 1)
