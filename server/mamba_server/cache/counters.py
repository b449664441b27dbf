"""Counters of the state cache, for metrics; they only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Checkpoints that the tree took, that found no slot, that went, and that the tree had already."""

    made: int = 0
    skipped: int = 0
    evicted: int = 0
    duplicates: int = 0
