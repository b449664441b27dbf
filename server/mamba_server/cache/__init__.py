"""State cache: arena, pages, slots, radix tree, chunk plan, strategies, ledger. Pure and torch-free.

This module is the interface: the engine imports these names and none of the modules. `protocol` states which
call is allowed when.
"""

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.eviction import POLICIES
from mamba_server.cache.node import (
    NO_TOKENS,
    CachedPrefix,
    Lineage,
    NearestPrefix,
    Origin,
    Pin,
    PrefixListener,
    Provenance,
    Tokens,
    common_pages,
)
from mamba_server.cache.persistent_batch import Bools, Ints, PersistentBatch
from mamba_server.cache.placement import aligned_piece, chunk_ends
from mamba_server.cache.protocol import (
    CacheCounters,
    CacheSettings,
    Capacity,
    DecodeRows,
    EvictedCheckpoint,
    EvictionListener,
    Export,
    LedgerAccount,
    ManagedStateCache,
    Quarantined,
    Reception,
    Refusal,
    StateCache,
)
from mamba_server.cache.sequence_allocation import Checkpoint, SequenceAllocation
from mamba_server.cache.state_cache import AllocationFault, build_state_cache
from mamba_server.cache.tree import Match

__all__ = [
    "NO_TOKENS",
    "POLICIES",
    "AllocationFault",
    "Bools",
    "CacheCounters",
    "CacheSettings",
    "CachedPrefix",
    "Capacity",
    "Checkpoint",
    "DecodeRows",
    "EvictedCheckpoint",
    "EvictionListener",
    "Export",
    "Ints",
    "LedgerAccount",
    "LedgerViolation",
    "Lineage",
    "ManagedStateCache",
    "Match",
    "NearestPrefix",
    "Origin",
    "PersistentBatch",
    "Pin",
    "PrefixListener",
    "Provenance",
    "Quarantined",
    "Reception",
    "Refusal",
    "SequenceAllocation",
    "StateCache",
    "Tokens",
    "aligned_piece",
    "build_state_cache",
    "chunk_ends",
    "common_pages",
]
