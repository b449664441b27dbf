"""`PrefixListener`: observer of the prefixes that a state cache can resume, and how it sees one.

The radix tree calls its listener in the midst of an admission or a commit, so a listener only takes notes.
"""

from collections.abc import Iterable
from typing import Optional, Protocol

from mamba_server.cache.node import Tokens


class CachedPrefix(Protocol):
    """Prefix in the radix tree: the tokens of one edge, and the shorter prefix that they continue.

    Read only, but for `chain` and `rungs`, where the one listener keeps notes.
    """

    token_ids: Tokens
    """Tokens of the edge alone."""
    depth: int
    """Tokens from the root to the end of the edge."""
    slot: int
    """Slot of the checkpoint at the end; 0 = there is none."""
    salt: str
    chain: int | None
    """Running sum of the page chain up to the end, once a listener has computed it."""
    rungs: bytes | None
    """Hashes of the prefixes that end at the edge's rungs, once a listener has computed them."""

    @property
    def parent(self) -> Optional["CachedPrefix"]:
        """The shorter prefix; None = this is the root, which has no tokens."""


class PrefixListener(Protocol):
    """Observer of the radix tree. Each change is reported exactly once."""

    def gained(self, prefix: CachedPrefix) -> None:
        """Report that `prefix` now has a checkpoint."""

    def lost(self, prefix: CachedPrefix) -> None:
        """Report that `prefix` is about to lose its checkpoint."""

    def pages_gained(self, prefix: CachedPrefix) -> None:
        """Report that the pages of `prefix` can be used now."""

    def pages_lost(self, prefix: CachedPrefix) -> None:
        """Report that `prefix` is about to be removed, with its pages."""

    def flushed(self, kept: Iterable[CachedPrefix]) -> None:
        """Report that all prefixes were forgotten except `kept`."""
