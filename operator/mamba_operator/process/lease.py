"""Who may act: the decision about the Lease, without clock or network. Pure; `leadership` carries it out.

A holder is judged by how long *we* have seen its record unchanged, never by the times in it: clocks of two
machines differ.
"""

from dataclasses import dataclass
from enum import StrEnum


class Move(StrEnum):
    """What to do about the lease."""

    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Record:
    """The lease as it was read."""

    holder: str | None
    version: str
    """resourceVersion: changes with every renewal."""
    duration: float
    """Seconds the holder asked for."""
    transitions: int = 0
    """How often the holder changed."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A record and when we first saw it like this, in seconds of our own monotonic clock."""

    record: Record
    since: float


def watch(previous: Watched | None, record: Record, now: float) -> Watched:
    """Remember `record`; the age goes on when nothing changed."""
    if previous is not None and previous.record.version == record.version:
        return previous
    return Watched(record, now)


def decide(watched: Watched | None, identity: str, now: float) -> Move:
    """What `identity` does; None = there is no lease yet."""
    if watched is None or not watched.record.holder:
        return Move.TAKE
    if watched.record.holder == identity:
        return Move.RENEW
    return Move.TAKE if now - watched.since > watched.record.duration else Move.WAIT
