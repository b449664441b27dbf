"""Results of the operations of a `BundleStore` (put, lookup and read), and its status. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mamba_tier.items import Item

COUNTERS = {
    "accepted": "bundles that a put copied",
    "known": "bundles that were stored already",
    "dropped": "bundles that were dropped because too many waited for the writer",
    "off": "bundles that no tier takes",
    "stored": "bundles that were added to the host tier",
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
"""Counters of a store, and what each of them has counted since the start."""


class PutOutcome(StrEnum):
    """Whether the store took a bundle that was offered to it, or why not."""

    ACCEPTED = "accepted"
    """The bytes were copied, and the writer will store the bundle."""
    KNOWN = "known"
    """The bundle is already stored, or waits to be stored."""
    DROPPED = "dropped"
    """The bundle was not accepted, because too many bundles wait for the writer, or they take all staging
    memory."""
    OFF = "off"
    """The bundle was not accepted, because every tier is off or too small for it, or because it does not fit
    into the memory of the host tier and of waiting bundles together."""


class ReadOutcome(StrEnum):
    """Whether a read succeeded; the landing buffers hold the bundle only if it is VALID."""

    VALID = "valid"
    CORRUPT = "corrupt"
    """A checksum or the identity of the data did not match; the damaged record or block was dropped."""
    GONE = "gone"
    """The bundle was evicted after the lookup, its file is gone, or its tier was switched off."""


@dataclass(frozen=True, slots=True)
class Match:
    """The stored bundle of the longest prefix of a prompt, which the engine may read to resume there."""

    depth: int
    """Number of tokens of the prefix."""
    base: int
    """Number of tokens, at most `depth`, whose pages are not read because the engine has them."""
    state_bytes: int
    """Size in bytes of the state, for which the reader provides buffers."""
    pages_bytes: int
    """Size in bytes of the pages of the tokens [base, depth), for which the reader provides buffers."""
    disk_bytes: int
    """Number of all these bytes that are read from disk."""
    items: tuple[Item, ...] = field(repr=False, default=())
    """The record and its blocks. Only the store uses this field."""

    @property
    def total_bytes(self) -> int:
        """Number of bytes that a read of this bundle transfers."""
        return self.state_bytes + self.pages_bytes


class TierState(StrEnum):
    """Whether a tier stores and returns bundles."""

    ON = "on"
    OFF = "off"
    """The device or the writer has failed, the device is full, or the store is closed."""


@dataclass(frozen=True, slots=True)
class TierStatus:
    """State of one tier: how much it stores, and whether it works."""

    state: TierState
    reason: str
    """Reason why the tier is off; empty while it is on."""
    used_bytes: int
    budget_bytes: int
    records: int
    """Number of stored checkpoints."""
    evictions: int
    """Number of checkpoints that were removed to make room for others since the start; a checkpoint that
    moves from host memory to disk counts as well."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """State of each tier, by its name, and what the store has counted since its start."""

    tiers: Mapping[str, TierStatus]
    counters: Mapping[str, int]
    waiting: int
    """Number of bundles that wait for the writer."""
