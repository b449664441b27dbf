"""Who may act: the decision about the Lease, without clock or network. Pure; `leadership` carries it out.

A holder is judged by how long *we* have seen its record unchanged, never by the times in it: clocks of two
machines differ.
"""

from dataclasses import dataclass
from enum import StrEnum


class LeaseAction(StrEnum):
    """What to do about the lease."""

    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The lease as it was read."""

    holder: str | None
    version: str
    """resourceVersion: changes with every renewal."""
    duration: float
    """Seconds the holder asked for."""
    transitions: int = 0
    """How often the holder changed."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A record and when we first saw it like this, in seconds of our own monotonic clock."""

    record: LeaseRecord
    since: float


def observe_lease(previous: ObservedLease | None, record: LeaseRecord, now: float) -> ObservedLease:
    """Remember `record`; the age goes on when nothing changed."""
    if previous is not None and previous.record.version == record.version:
        return previous
    return ObservedLease(record, now)


def lease_action(watched: ObservedLease | None, identity: str, now: float) -> LeaseAction:
    """What `identity` does; None = there is no lease yet."""
    if watched is None or not watched.record.holder:
        return LeaseAction.TAKE
    if watched.record.holder == identity:
        return LeaseAction.RENEW
    return LeaseAction.TAKE if now - watched.since > watched.record.duration else LeaseAction.WAIT
