"""Counters of the state cache, for metrics; they only grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class CacheCounters:
    """Counters of checkpoints: each counts one event in their life and only grows."""

    created: int = 0
    """Checkpoints that the tree took over."""
    skipped: int = 0
    """Checkpoints that found no free slot."""
    evicted: int = 0
    duplicates: int = 0
    """Checkpoints that the tree already had."""
