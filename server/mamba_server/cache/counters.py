"""What happened in the state cache, for metrics; only grows."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class CacheCounters:
    """Checkpoints that the tree took, that found no slot, that went, and that the tree had already."""

    made: int = 0
    skipped: int = 0
    evicted: int = 0
    duplicates: int = 0
    misses: Counter[str] = field(default_factory=Counter)
