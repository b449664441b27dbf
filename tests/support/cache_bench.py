"""A bare state cache on a guarded arena, and what unit tests do with it: admit, run, end a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from guarded_arena import GuardedArena
from mamba_planner.strategy import reservation
from mamba_server.cache import ledger
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import Tokens
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.sequence_allocation import SequenceAllocation
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from prefix_of import prefix_of


def ids(*parts: int | range) -> Tokens:
    """Return int32 tokens of numbers and ranges."""
    out: list[int] = []
    for part in parts:
        out.extend(part if isinstance(part, range) else [part])
    return np.array(out, np.int32)


def flush_and_sweep(cache: RadixStateCache) -> int:
    """Flush, return unused memory to the arena, and return the number of checkpoints lost."""
    lost = cache.flush()
    while cache.reclaimer.sweeping:
        cache.reclaimer.sweep()
    return lost


@dataclass
class CacheBench:
    """`cache` with small numbers; `step` counts launched steps."""

    cache: RadixStateCache
    step: int = 0

    @classmethod
    def make(
        cls, *, strategy: str = "ExtraBuffer", overlap: bool = True, slabs: int = 16, per_slab: int = 4,
        page_size: int = 4, interval: int = 8, cap: int = 4, prefix_caching: bool = True, policy: str = "LRU",
    ) -> CacheBench:  # fmt: skip
        return cls(
            RadixStateCache(
                GuardedArena(slabs, per_slab), RadixTree(page_size, Eviction(policy)),
                PersistentBatch(8, 512), reservation(strategy, overlap=overlap), track_interval=interval,
                cap=cap, prefix_caching=prefix_caching,
            )
        )  # fmt: skip

    @property
    def arena(self) -> GuardedArena:
        assert isinstance(self.cache.arena, GuardedArena)
        return self.cache.arena

    def admit(self, tokens: Tokens, *, salt: str = "", boundary: int = 0) -> SequenceAllocation | None:
        match = self.cache.match(tokens, salt, self.step + 1)
        return self.cache.admit(tokens, salt, match, len(tokens), boundary)

    def launch(self, allocation: SequenceAllocation, depth: int) -> int:
        """Launch a prefill step up to `depth` without completing it."""
        self.step += 1
        self.cache.plan_prefill(allocation, depth, self.step)
        self.cache.launch(allocation.row, depth, self.step)
        return self.step

    def decode(self, allocation: SequenceAllocation) -> int:
        """Launch a decode step without completing it; a False of `extend` is left to the caller."""
        self.step += 1
        depth = allocation.depth + 1
        assert self.cache.extend(allocation, depth)
        if depth % self.cache.track_interval == 0:
            self.cache.take_decode_slot(allocation, self.step)
        self.cache.launch(allocation.row, depth, self.step)
        return self.step

    def commit(self, allocation: SequenceAllocation, tokens: Tokens, step: int | None = None) -> None:
        step = self.step if step is None else step
        self.cache.advance(step)
        self.cache.commit(allocation, tokens, step)
        self.check()

    def prefill(self, tokens: Tokens, *, salt: str = "", boundary: int = 0) -> SequenceAllocation:
        """Admit, compute the whole prompt in one step, commit."""
        allocation = self.admit(tokens, salt=salt, boundary=boundary)
        assert allocation is not None
        self.launch(allocation, len(tokens))
        self.commit(allocation, tokens)
        return allocation

    def serve(self, tokens: Tokens, *, salt: str = "", boundary: int = 0) -> None:
        """Serve a prompt without output, from start to end."""
        self.cache.retire(self.prefill(tokens, salt=salt, boundary=boundary), lambda: tokens)
        self.check()

    def check(self) -> None:
        ledger.check(self.cache)

    def checkpoints(self, tokens: Tokens, salt: str = "") -> list[int]:
        """Return the depths of the checkpoints on the path of `tokens`."""
        out = []
        for node in self.cache.tree.walk():
            key = prefix_of(node)
            if node.slot and node.salt == salt and np.array_equal(key, tokens[: len(key)]):
                out.append(node.depth)
        return sorted(out)
