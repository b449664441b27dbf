"""Changes of the radix tree since the last message, for the prefix index.

They are checkpoints, and attention pages at the rungs of their prompts. The tree reports them in the engine
process, which sends them between two steps. The memory of the cache bounds them: an entry that comes and goes
between two messages is not sent.
"""

from collections.abc import Iterable

import numpy as np

from mamba_prefix.messages import pack_entries, pack_hashes
from mamba_prefix.page_chain import PageChain
from mamba_prefix.page_rungs import rungs
from mamba_server.cache import CachedPrefix
from mamba_server.wire import PrefixChanges


class TreeChanges:
    """Collects the changes of one radix tree until `take` returns them as a message.

    The tree reports its changes here, because this is a `PrefixListener`. Each prefix is known by its hash.
    """

    def __init__(self, page_size: int, fingerprint: str) -> None:
        self.epoch = 1
        """Number of the epoch; it rises when earlier messages are void."""
        self._page_size = page_size
        self._chain = PageChain(page_size, fingerprint)
        self._gained: dict[int, int] = {}
        self._lost: set[int] = set()
        self._pages_gained: set[int] = set()
        self._pages_lost: set[int] = set()
        self._cleared = False

    @property
    def pending(self) -> bool:
        """Whether there are changes to send."""
        return bool(self._gained or self._lost or self._pages_gained or self._pages_lost or self._cleared)

    def gained(self, prefix: CachedPrefix) -> None:
        prefix_hash = self.hash_of(prefix)
        if prefix_hash in self._lost:
            self._lost.discard(prefix_hash)
        else:
            self._gained[prefix_hash] = prefix.depth

    def lost(self, prefix: CachedPrefix) -> None:
        prefix_hash = self.hash_of(prefix)
        if self._gained.pop(prefix_hash, None) is None:
            self._lost.add(prefix_hash)

    def pages_gained(self, prefix: CachedPrefix) -> None:
        hashes = self._rungs_of(prefix)
        self._pages_gained |= hashes - self._pages_lost
        self._pages_lost -= hashes

    def pages_lost(self, prefix: CachedPrefix) -> None:
        hashes = self._rungs_of(prefix)
        self._pages_lost |= hashes - self._pages_gained
        self._pages_gained -= hashes

    def flushed(self, kept: Iterable[CachedPrefix]) -> None:
        """Forget the collected changes and begin a new epoch, which starts with only the prefixes `kept`."""
        self.epoch += 1
        self._cleared = True
        self._lost.clear()
        self._pages_lost.clear()
        self._gained, self._pages_gained = {}, set()
        for prefix in kept:
            self._gained[self.hash_of(prefix)] = prefix.depth
            self._pages_gained |= self._rungs_of(prefix)

    def take(self) -> PrefixChanges | None:
        """Return the changes as a message, and clear them; None = there are none."""
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
        """Return the hash of the prefix that ends with `prefix`."""
        return self._chain.hash_of(self._running(prefix))

    def _rungs_of(self, prefix: CachedPrefix) -> set[int]:
        """Return the hashes of the prefixes that end with the rungs among the pages of `prefix`.

        They are computed, together with the running sum, when the prefix comes, and kept for when it goes:
        that is in the middle of an admission that needs its memory.
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
        """Return the running sum up to the end of `prefix`; each edge is summed once and keeps its sum."""
        path = []
        ancestor: CachedPrefix | None = prefix
        while ancestor is not None and ancestor.chain is None:
            path.append(ancestor)
            ancestor = ancestor.parent
        running = ancestor.chain if ancestor is not None else None
        for edge in reversed(path):
            if running is None or edge.parent is None:
                running = self._chain.start(edge.salt)
            else:
                running = self._chain.extend(running, edge.parent.depth // self._page_size, edge.token_ids)
            edge.chain = running
        assert running is not None
        return running
