"""`RecentGains`: the latest hashes that one engine has published as cached, by the revision of the index."""

from collections import deque

import numpy as np

from mamba_prefix.page_chain import Hashes

MAX_HASHES = 1 << 14
"""Number of hashes that are remembered for one engine, 8 bytes each."""

MAX_HASHES_OF_LATER_ENGINES = MAX_HASHES // 8
"""Number of hashes that are remembered for each engine of a large fleet."""


class RecentGains:
    """Hashes that one engine has recently published as cached, each with the revision at which it did.

    A revision is a number of the index that holds this object; the number increases with each change. At most
    `most` hashes are remembered.
    """

    def __init__(self, most: int = MAX_HASHES) -> None:
        self._most = most
        self._batches: deque[tuple[int, Hashes]] = deque()
        self._size = 0
        self._since = 0
        """Revision after which all published hashes are remembered."""

    def add(self, revision: int, hashes: Hashes) -> None:
        """Record `hashes`, which the engine published when the index reached `revision`.

        If more hashes than the limit are then remembered, the oldest batches are forgotten.
        """
        if len(hashes):
            self._batches.append((revision, hashes))
            self._size += len(hashes)
        while self._size > self._most:
            self._since, oldest = self._batches.popleft()
            self._size -= len(oldest)

    def begin(self, revision: int) -> None:
        """Forget all hashes: at `revision`, the index replaced all entries of the engine."""
        self._batches.clear()
        self._size, self._since = 0, revision

    def after(self, revision: int) -> Hashes | None:
        """Return the hashes that were published after `revision`, uint64[n], in no order.

        The result is None if hashes since that revision have been forgotten.
        """
        if revision < self._since:
            return None
        batches = [hashes for batch_revision, hashes in self._batches if batch_revision > revision]
        return np.concatenate(batches) if batches else np.empty(0, np.uint64)
