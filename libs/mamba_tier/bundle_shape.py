"""`BundleShape`: which bundles one store holds, and `StoreSettings`: where and how many bytes.

Pure.
"""

from dataclasses import dataclass
from pathlib import Path

from mamba_tier.errors import BadBudget, SizeMismatch

BLOCK_TOKENS = 256
"""Tokens of a block of pages, unless a page has more: checkpoints of one path share whole blocks."""
STAGING_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class BundleShape:
    """The shape of all bundles of one engine. Bundles of another shape are never returned."""

    fingerprint: str
    """Identity of the model whose states can replace each other."""
    layout: str
    """Identity of the arrangement of bytes within a state and a page."""
    page_size: int
    """Tokens of a page."""
    state_bytes: int
    """Bytes of a recurrent state."""
    page_bytes: int
    """Bytes of an attention page; 0 = the model has no attention layers."""
    most_block_tokens: int = BLOCK_TOKENS
    """Largest number of tokens of a block, where that is a page or more."""

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.state_bytes < 0 or self.page_bytes < 0:
            raise SizeMismatch(f"{self} has a page size below 1, or negative bytes")
        if not self.state_bytes + self.page_bytes:
            raise SizeMismatch("a bundle has no bytes: give the bytes of a state, of a page, or of both")

    @property
    def block_pages(self) -> int:
        """Return the number of pages of a block."""
        return max(1, self.most_block_tokens // self.page_size)

    @property
    def block_tokens(self) -> int:
        """Return the number of tokens of a block."""
        return self.block_pages * self.page_size

    def tail_start(self, depth: int) -> int:
        """Return the end of the last whole block of a prefix; its record has the pages from there on."""
        return depth // self.block_tokens * self.block_tokens if self.page_bytes else depth

    def blocks_before(self, first: int) -> int:
        """Return the number of blocks of a record whose own pages begin at `first`."""
        return first // self.block_tokens if self.page_bytes else 0

    def pages_bytes(self, tokens: int) -> int:
        """Return the bytes of the pages of `tokens` tokens, a multiple of the page size."""
        return tokens // self.page_size * self.page_bytes


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Budgets and places of a store. A tier without bytes does not exist."""

    host_bytes: int = 0
    """Host memory for bundles, in bytes."""
    disk_bytes: int = 0
    """Space on disk for bundles, in bytes, including headers and unused ends of blocks."""
    directory: Path | None = None
    """Directory of the disk tier, which belongs to this store alone."""
    staging_bytes: int = STAGING_BYTES
    """Further host memory, in bytes, for bundles that wait for the writer; beyond it, bundles are dropped."""
    sync: bool = False
    """Whether records are forced to the device. Without it, checksums reject what a power failure tore."""

    def __post_init__(self) -> None:
        if min(self.host_bytes, self.disk_bytes) < 0 or self.staging_bytes <= 0:
            raise BadBudget("give budgets of 0 or more bytes, and some bytes for bundles that wait")
        if not self.host_bytes + self.disk_bytes:
            raise BadBudget("a store needs bytes of host memory or of disk")
        if bool(self.disk_bytes) != (self.directory is not None):
            raise BadBudget("a disk tier needs both a directory and a number of bytes")
