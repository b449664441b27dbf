"""Decision about the Lease, without clock or network. Pure; `leadership` carries it out.

A holder has lost the lease when *this* process has seen its record unchanged for too long. The times in the
record are never used, because the clocks of two machines differ.
"""

from dataclasses import dataclass
from enum import StrEnum


class LeaseAction(StrEnum):
    """The action of one process that wants a lease or holds it."""

    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """The lease as the API server describes it."""

    holder: str | None
    version: str
    """resourceVersion, which changes with every renewal."""
    duration: float
    """Seconds that the holder requested."""
    transitions: int = 0
    """Number of changes of the holder."""


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A lease as one process has last read it, and since when the process has seen it unchanged."""

    record: LeaseRecord
    since: float
    """Time at which the record was first seen as it is, in seconds of our own monotonic clock."""


def observe_lease(previous: ObservedLease | None, record: LeaseRecord, now: float) -> ObservedLease:
    """Return the observation of `record`, which was read at `now`, in seconds of our own monotonic clock.

    An unchanged record keeps the time at which it was first seen.
    """
    if previous is not None and previous.record.version == record.version:
        return previous
    return ObservedLease(record, now)


def lease_action(watched: ObservedLease | None, identity: str, now: float) -> LeaseAction:
    """Return the action of the process `identity` at `now`, in seconds of our own monotonic clock.

    `watched` is None while there is no lease.
    """
    if watched is None or not watched.record.holder:
        return LeaseAction.TAKE
    if watched.record.holder == identity:
        return LeaseAction.RENEW
    return LeaseAction.TAKE if now - watched.since > watched.record.duration else LeaseAction.WAIT
