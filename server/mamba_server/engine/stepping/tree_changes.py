"""What the radix tree gained and lost since the last message, for the prefix index.

Checkpoints, and pages of attention at the rungs of their prompts. Listens to the tree in the engine process,
which sends what it collects between two steps. Bounded by the memory: what comes and goes between two
messages is not told at all.
"""

from collections.abc import Iterable

import numpy as np

from mamba_prefix.messages import pack_entries, pack_hashes
from mamba_prefix.page_chain import PageChain
from mamba_prefix.page_rungs import rungs
from mamba_server.cache import CachedPrefix
from mamba_server.wire import PrefixChanges


class TreeChanges:
    """Collected changes of one tree, by the hashes of prefixes: a `PrefixListener`."""

    def __init__(self, page_size: int, fingerprint: str) -> None:
        self.epoch = 1
        """Rises when what was told before is void."""
        self._page_size = page_size
        self._chain = PageChain(page_size, fingerprint)
        self._gained: dict[int, int] = {}
        self._lost: set[int] = set()
        self._pages_gained: set[int] = set()
        self._pages_lost: set[int] = set()
        self._cleared = False

    @property
    def pending(self) -> bool:
        """There is something to tell."""
        return bool(self._gained or self._lost or self._pages_gained or self._pages_lost or self._cleared)

    def gained(self, prefix: CachedPrefix) -> None:
        each = self.hash_of(prefix)
        if each in self._lost:
            self._lost.discard(each)
        else:
            self._gained[each] = prefix.depth

    def lost(self, prefix: CachedPrefix) -> None:
        each = self.hash_of(prefix)
        if self._gained.pop(each, None) is None:
            self._lost.add(each)

    def pages_gained(self, prefix: CachedPrefix) -> None:
        told = self._rungs_of(prefix)
        self._pages_gained |= told - self._pages_lost
        self._pages_lost -= told

    def pages_lost(self, prefix: CachedPrefix) -> None:
        told = self._rungs_of(prefix)
        self._pages_lost |= told - self._pages_gained
        self._pages_gained -= told

    def flushed(self, kept: Iterable[CachedPrefix]) -> None:
        """Begin the next epoch, of which only `kept` has something yet."""
        self.epoch += 1
        self._cleared = True
        self._lost.clear()
        self._pages_lost.clear()
        self._gained, self._pages_gained = {}, set()
        for prefix in kept:
            self._gained[self.hash_of(prefix)] = prefix.depth
            self._pages_gained |= self._rungs_of(prefix)

    def take(self) -> PrefixChanges | None:
        """What there is to tell, which is forgotten here; None: nothing."""
        if not self.pending:
            return None
        message = PrefixChanges(
            self.epoch, self._cleared, pack_entries(self._gained), pack_hashes(self._lost),
            pack_hashes(self._pages_gained), pack_hashes(self._pages_lost),
        )  # fmt: skip
        self._gained, self._lost, self._cleared = {}, set(), False
        self._pages_gained, self._pages_lost = set(), set()
        return message

    def hash_of(self, prefix: CachedPrefix) -> int:
        """The hash of the prefix that ends with `prefix`."""
        return self._chain.hash_of(self._running(prefix))

    def _rungs_of(self, prefix: CachedPrefix) -> set[int]:
        """The hashes of the prefixes that end with those of the prefix's own pages that are rungs.

        Worked out when it comes, with its own running sum, and remembered for when it goes, which is in the
        midst of a start that wants its memory.
        """
        if prefix.parent is None:
            return set()
        if prefix.rungs is None:
            above = (prefix.depth - len(prefix.token_ids)) // self._page_size
            sums = self._chain.sums_after(self._running(prefix.parent), above, prefix.token_ids)
            prefix.chain = int(sums[-1])
            which = rungs(above, prefix.depth // self._page_size)
            prefix.rungs = self._chain.hashes_of(sums[which - above - 1]).tobytes()
        return set(np.frombuffer(prefix.rungs, np.uint64).tolist())

    def _running(self, prefix: CachedPrefix) -> int:
        """Each edge is summed once: its nodes remember."""
        path = []
        at: CachedPrefix | None = prefix
        while at is not None and at.chain is None:
            path.append(at)
            at = at.parent
        running = at.chain if at is not None else None
        for each in reversed(path):
            if running is None or each.parent is None:
                running = self._chain.start(each.salt)
            else:
                running = self._chain.extend(running, each.parent.depth // self._page_size, each.token_ids)
            each.chain = running
        assert running is not None
        return running
