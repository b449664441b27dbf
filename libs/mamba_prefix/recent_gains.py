"""What one engine published of late as gained: what is known of it from before then is old."""

from collections import deque

import numpy as np

from mamba_prefix.page_chain import Hashes

MOST = 1 << 14
"""Hashes that are remembered of one engine, 8 bytes each."""

FEW = MOST // 8
"""The same of one engine of very many."""


class RecentGains:
    """Of one engine; revisions are those of the copy that it belongs to, and rise."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._batches: deque[tuple[int, Hashes]] = deque()
        self._size = 0
        self._since = 0
        """All that was gained after this revision is here."""

    def add(self, revision: int, hashes: Hashes) -> None:
        """Gained with this revision."""
        if len(hashes):
            self._batches.append((revision, hashes))
            self._size += len(hashes)
        while self._size > self._most:
            self._since, gone = self._batches.popleft()
            self._size -= len(gone)

    def begin(self, revision: int) -> None:
        """With this revision all that the engine has was said anew."""
        self._batches.clear()
        self._size, self._since = 0, revision

    def after(self, revision: int) -> Hashes | None:
        """uint64[n] gained after this revision, in no order; None: nobody remembers so far back."""
        if revision < self._since:
            return None
        found = [hashes for at, hashes in self._batches if at > revision]
        return np.concatenate(found) if found else np.empty(0, np.uint64)
