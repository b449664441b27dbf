"""Answers of a store: of a put, of a lookup, of a read, and of a question for its status. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mamba_tier.items import Item

COUNTERS = {
    "accepted": "bundles that a put copied",
    "known": "bundles that were stored already",
    "dropped": "bundles that found the writer behind",
    "off": "bundles that no tier takes",
    "stored": "bundles that the host tier got",
    "demoted": "bundles that were written to disk",
    "demoted_bytes": "bytes of files that were written",
    "no_room": "bundles that the disk tier had no room for",
    "restored_host": "bundles that were read, all from host memory",
    "restored_disk": "bundles that were read, some of it from disk",
    "restored_bytes": "bytes that were read",
    "corrupt": "damaged records and blocks",
    "stale": "files of another model or layout that a start removed",
    "gone": "reads that came after an eviction or a failure",
}
"""Counters of a store, and what each counts since the start."""


class PutOutcome(StrEnum):
    """The answer to a bundle that was offered."""

    ACCEPTED = "accepted"
    """The bytes are copied; the writer stores the bundle soon."""
    KNOWN = "known"
    """The store has the bundle already."""
    DROPPED = "dropped"
    """No memory was free for the bundle: the writer is behind."""
    OFF = "off"
    """Every tier is off or too small for the bundle, or the memory for what waits is."""


class ReadOutcome(StrEnum):
    """The answer to a read. Landing buffers hold the bundle after VALID alone, and garbage otherwise."""

    VALID = "valid"
    CORRUPT = "corrupt"
    """A checksum or an identity differed; the record is deleted."""
    GONE = "gone"
    """The bundle was evicted since the lookup, or its tier went off."""


@dataclass(frozen=True, slots=True)
class Match:
    """The deepest bundle that a prompt can resume from."""

    depth: int
    """Tokens up to the checkpoint."""
    base: int
    """Tokens whose pages are not read; at most `depth`."""
    state_bytes: int
    """Bytes that land in the buffers of the state."""
    pages_bytes: int
    """Bytes that land in the buffers of the pages of [base, depth)."""
    disk_bytes: int
    """Part of all these bytes that comes from disk."""
    items: tuple[Item, ...] = field(repr=False, default=())
    """The record and its blocks, for the store alone."""

    @property
    def total_bytes(self) -> int:
        """Return the number of bytes that a read of this bundle moves."""
        return self.state_bytes + self.pages_bytes


class TierState(StrEnum):
    """Whether a tier takes and gives bundles."""

    ON = "on"
    OFF = "off"
    """The device failed or is full; the log has one line with the reason."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """Contents and state of one tier."""

    state: TierState
    reason: str
    """Why the tier is off; empty while it is on."""
    used_bytes: int
    budget_bytes: int
    records: int
    """Number of checkpoints."""
    evictions: int
    """Number of checkpoints that left the tier for others, since the start; from host memory also to disk."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Tiers of a store, by name, and its counters since the start."""

    tiers: Mapping[str, TierStatus]
    counters: Mapping[str, int]
    waiting: int
    """Bundles that wait for the writer."""
