"""`BundleShape`: the sizes and the identity of all bundles of one store, and `StoreSettings`: its budgets.

A bundle is the state of one checkpoint together with the attention pages of its prefix. The store cuts the
pages of a prefix into blocks of pages, which all bundles of texts with this beginning share; the pages behind
the last whole block lie in the bundle's record, with its state. Pure.
"""

from dataclasses import dataclass
from pathlib import Path

from mamba_tier.errors import BadBudget, SizeMismatch

BLOCK_TOKENS = 256
"""Number of tokens of a block of pages, unless one page has more. Checkpoints of one path share whole
blocks."""
STAGING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class BundleShape:
    """Sizes of the bundles of one engine, and which model and layout their bytes are of.

    A bundle is one state with its pages. Bundles of another shape are never returned.
    """

    fingerprint: str
    """Identity of the model: states of equal fingerprints can replace each other."""
    layout: str
    """Identity of the arrangement of bytes within a state and within a page."""
    page_size: int
    """Number of tokens of a page."""
    state_bytes: int
    """Size of one recurrent state in bytes."""
    page_bytes: int
    """Size of one attention page in bytes; 0 = the model has no attention layers."""
    most_block_tokens: int = BLOCK_TOKENS
    """Maximum number of tokens of a block; a block has at least one page, however large."""

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.state_bytes < 0 or self.page_bytes < 0:
            raise SizeMismatch(f"{self} has a page size below 1, or negative bytes")
        if not self.state_bytes + self.page_bytes:
            raise SizeMismatch("a bundle has no bytes: give the bytes of a state, of a page, or of both")

    @property
    def block_pages(self) -> int:
        """Number of pages of a block, which the store keeps once for all bundles that share the block."""
        return max(1, self.most_block_tokens // self.page_size)

    @property
    def block_tokens(self) -> int:
        """Number of tokens of a block of pages."""
        return self.block_pages * self.page_size

    def tail_start(self, depth: int) -> int:
        """Return the end, in tokens, of the last whole block of the prefix of `depth` tokens.

        A record holds the pages behind this end.
        """
        return depth // self.block_tokens * self.block_tokens if self.page_bytes else depth

    def blocks_before(self, first: int) -> int:
        """Return the number of blocks that precede a record whose own pages begin at token `first`."""
        return first // self.block_tokens if self.page_bytes else 0

    def pages_bytes(self, tokens: int) -> int:
        """Return the size in bytes of the pages of `tokens` tokens, a multiple of the page size."""
        return tokens // self.page_size * self.page_bytes


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Budgets and directory of a store. A tier with a budget of 0 bytes does not exist."""

    host_bytes: int = 0
    """Host memory for bundles, in bytes; 0 = no tier in host memory."""
    disk_bytes: int = 0
    """Disk space for bundles, in bytes, including headers and the unused ends of file system blocks; 0 = no
    tier on disk."""
    directory: Path | None = None
    """Directory of the disk tier, which no other store uses."""
    staging_bytes: int = STAGING_BYTES
    """Additional host memory, in bytes, for bundles that wait for the writer; a bundle that does not fit is
    dropped."""
    sync: bool = False
    """Whether each file is forced to the device when it is written. Without that, checksums reject files that
    a power failure damaged."""

    def __post_init__(self) -> None:
        if min(self.host_bytes, self.disk_bytes) < 0 or self.staging_bytes <= 0:
            raise BadBudget("give budgets of 0 or more bytes, and some bytes for bundles that wait")
        if not self.host_bytes + self.disk_bytes:
            raise BadBudget("a store needs bytes of host memory or of disk")
        if bool(self.disk_bytes) != (self.directory is not None):
            raise BadBudget("a disk tier needs both a directory and a number of bytes")
