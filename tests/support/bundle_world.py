"""Bundles whose bytes follow from their tokens, so that wrong restores show; an audit of a store's books."""

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import xxhash

from mamba_prefix.page_chain import Tokens
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.bundle_store import BundleStore
from mamba_tier.items import Item
from mamba_tier.outcomes import Match, PutOutcome, ReadOutcome

PATIENCE = 120.0
SHAPE = BundleShape("model", "layout", page_size=4, state_bytes=700, page_bytes=300, most_block_tokens=16)


def tokens(count: int, seed: int = 0) -> Tokens:
    """Return a prompt: the same seed gives prefixes of the same path."""
    return np.random.default_rng(seed).integers(0, 1000, 4096).astype(np.int32)[:count]


def content(shape: BundleShape, token_ids: Tokens, salt: str, what: str, count: int) -> bytes:
    seed = xxhash.xxh3_64_intdigest(f"{shape.fingerprint} {salt} {what} ".encode() + token_ids.tobytes())
    return np.random.default_rng(seed).bytes(count)


def state_of(token_ids: Tokens, salt: str = "", shape: BundleShape = SHAPE) -> bytes:
    """Return the only right state of a prefix."""
    return content(shape, token_ids, salt, "state", shape.state_bytes)


def pages_of(token_ids: Tokens, first: int = 0, salt: str = "", shape: BundleShape = SHAPE) -> bytes:
    """Return the only right pages of [first, end) of a prefix."""
    ends = range(first + shape.page_size, len(token_ids) + 1, shape.page_size)
    return b"".join(content(shape, token_ids[:end], salt, "page", shape.page_bytes) for end in ends)


def put(
    store: BundleStore, token_ids: Tokens, salt: str = "", *, shape: BundleShape = SHAPE, sparse: bool = True
) -> PutOutcome:
    """Offer the bundle of a whole prefix; `sparse`: with those pages alone that the store misses."""
    first = (store.missing_from(token_ids, salt) or 0) if sparse else 0
    pages = pages_of(token_ids, first, salt, shape)
    return store.put(
        token_ids, salt, [memoryview(state_of(token_ids, salt, shape))], [memoryview(pages)], first
    )


def stored(store: BundleStore, token_ids: Tokens, salt: str = "", *, shape: BundleShape = SHAPE) -> None:
    """Offer a bundle and wait for the writer."""
    assert put(store, token_ids, salt, shape=shape) in (PutOutcome.ACCEPTED, PutOutcome.KNOWN)
    assert store.drain(PATIENCE)


def restore(
    store: BundleStore, match: Match, token_ids: Tokens, salt: str = "", *, shape: BundleShape = SHAPE
) -> ReadOutcome:
    """Read a match into buffers of odd sizes, and check every byte of a valid one."""
    state, pages = bytearray(match.state_bytes), bytearray(match.pages_bytes)
    outcome = store.read(match, split(state, 333), split(pages, 170))
    if outcome is ReadOutcome.VALID:
        prefix = token_ids[: match.depth]
        assert bytes(state) == state_of(prefix, salt, shape)
        assert bytes(pages) == pages_of(prefix, match.base, salt, shape)
    return outcome


def resumed(store: BundleStore, token_ids: Tokens, salt: str = "", *, base: int = 0) -> int:
    """Return the depth that a prompt resumes at, with the right bytes, or 0."""
    match = store.lookup(token_ids, salt, base=base)
    if match is None:
        return 0
    return match.depth if restore(store, match, token_ids, salt) is ReadOutcome.VALID else 0


def split(buffer: bytearray, size: int) -> list[memoryview]:
    """Return views of the pieces of a buffer."""
    view = memoryview(buffer)
    return [view[start : start + size] for start in range(0, len(view), size)]


def disk_store(path: Path, disk_bytes: int = 1 << 20, shape: BundleShape = SHAPE) -> BundleStore:
    """Open a store that has a disk tier alone."""
    return BundleStore(shape, StoreSettings(disk_bytes=disk_bytes, directory=path, staging_bytes=1 << 20))


def bundle_files(path: Path) -> list[Path]:
    """Return the files of records and blocks."""
    return sorted(path.glob("*.bundle*"))


def audit(store: BundleStore, directory: Path | None = None) -> None:
    """Compare all books of a store that nobody uses with each other and with the directory."""
    assert store.drain(PATIENCE)
    with store._lock:
        held: Counter[Item] = Counter()
        for tier in store._tiers:
            for record in tier.records.values():
                assert not record.gone
                assert record.references == 1
                held.update(record.blocks)
        for tier in store._tiers:
            items: Iterable[Item] = itertools.chain(tier.records.values(), tier.blocks.values())
            damaged = (block for block in held if block.gone and block.keeper is tier)
            assert tier.used_bytes == sum(item.cost for item in itertools.chain(items, damaged))
            assert tier.used_bytes <= tier.budget_bytes
            for block in tier.blocks.values():
                assert block.references == held[block] > 0
        pool = store._host.pool
        assert pool.free_bytes == pool.capacity - store._host.used_bytes
        assert pool.free_bytes == sum(length for _, length in pool._free)
        if directory is not None and store._disk is not None and store._disk.on:
            sizes = [-(-path.stat().st_size // 4096) * 4096 for path in bundle_files(directory)]
            assert sum(sizes) == store._disk.used_bytes
