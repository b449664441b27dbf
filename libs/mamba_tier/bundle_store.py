"""`BundleStore`: the bundles of one engine, in host memory and on disk.

An engine offers each checkpoint that its cache evicts (`put`), searches for the prefix of a prompt
(`lookup`), and reads the bundle that it found into memory that it has reserved (`read`). The store does not
compute on states. A failure of a tier never reaches a request: a bundle that cannot be stored or read is
dropped. The store keeps a bundle as a record (the state, with the last pages) and as blocks of pages, which
other bundles may share.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import structlog

from mamba_prefix.page_chain import PageChain, Tokens
from mamba_settings.byte_size import binary_size
from mamba_tier.bundle_shape import BundleShape, StoreSettings
from mamba_tier.byte_row import ByteRow, copy
from mamba_tier.disk_folder import DiskFolder
from mamba_tier.disk_tier import DiskTier
from mamba_tier.errors import SizeMismatch
from mamba_tier.host_pool import rounded
from mamba_tier.host_tier import HostTier
from mamba_tier.items import Item, Record, let_go
from mamba_tier.landing import SHARE_BYTES, Landing, Share
from mamba_tier.outcomes import COUNTERS, Match, PutOutcome, ReadOutcome, StoreStatus
from mamba_tier.prefix_names import PrefixNames, whole_pages
from mamba_tier.shared_work import SharedWork
from mamba_tier.store_writer import StagedBundle, StoreWriter

Buffers = Sequence[memoryview]
HELPERS = min(3, (os.cpu_count() or 1) - 1)
"""Number of threads that help the reading thread to read and verify a large bundle."""
MOST_WAITING = 256
"""Maximum number of bundles that wait for the writer."""
log = structlog.get_logger("mambaserve.tier")


class BundleStore:
    """Keeps bundles (states with their pages) of one engine's cache in host memory and on disk.

    All methods may be called from any thread.
    """

    def __init__(self, shape: BundleShape, settings: StoreSettings) -> None:
        """Open the tiers and start the writer. Raises DirectoryBusy, DirectoryForeign, DirectoryUnusable."""
        self._shape = shape
        self._chain = PageChain(shape.page_size, shape.fingerprint)
        self._lock = threading.RLock()
        self._counters = Counter(dict.fromkeys(COUNTERS, 0))
        self._closed = False
        self._disk: DiskTier | None = None
        if settings.directory is not None:
            folder = DiskFolder(settings.directory)
            self._disk = DiskTier(folder, shape, settings.disk_bytes)
            try:
                self._counters.update(self._disk.scan())
            except BaseException:
                folder.close()
                raise
            log.info(
                "opened the disk tier", directory=str(settings.directory), records=len(self._disk.records),
                used=binary_size(self._disk.used_bytes), budget=binary_size(settings.disk_bytes),
                corrupt=self._counters["corrupt"], stale=self._counters["stale"],
            )  # fmt: skip
        self._host = HostTier(settings.host_bytes, settings.staging_bytes)
        self._tiers = (self._host,) if self._disk is None else (self._host, self._disk)
        self._writer = StoreWriter(
            shape, self._host, self._disk, self._lock, self._counters, sync=settings.sync
        )
        self._helpers = ThreadPoolExecutor(max(1, HELPERS), "bundle-reader")
        self._writer.start()

    def missing_from(self, token_ids: Tokens, salt: str) -> int | None:
        """Return the first token whose pages `put` needs for a prefix; None = the bundle is stored already.

        `token_ids` is the whole prefix up to the checkpoint, whose length is a multiple of the page size.
        """
        names = self._names(token_ids, salt, whole=True)
        with self._lock:
            missing = next(self._missing_blocks(names), None)
            if missing is not None:
                return missing - self._shape.block_tokens
            return None if self._has_record(names) else self._shape.tail_start(names.tokens)

    def put(self, token_ids: Tokens, salt: str, state: Buffers, pages: Buffers, first: int = 0) -> PutOutcome:
        """Copy a bundle into staging memory, from which the writer stores it later.

        `token_ids` is the whole prefix up to the checkpoint. `state` holds the bytes of its state, and
        `pages` the bytes of the pages of the tokens [first, end of the prefix) in order; `first` is 0, or
        what `missing_from` returned. The call copies the bytes once and does not wait for a tier; the caller
        may reuse the buffers afterwards. Raises SizeMismatch.
        """
        names = self._names(token_ids, salt, whole=True)
        whole_pages(first, self._shape.page_size, "the first page")
        if first > self._shape.tail_start(names.tokens):
            tail = self._shape.tail_start(names.tokens)
            raise SizeMismatch(f"give the pages from token {tail} on at least: the record needs them")
        state_row, pages_row = ByteRow(state), ByteRow(pages)
        _same_size(state_row, self._shape.state_bytes, "state")
        _same_size(pages_row, self._shape.pages_bytes(names.tokens - first), "pages")
        with self._lock:
            bundle = self._reserve(names, first)
            if isinstance(bundle, PutOutcome):
                self._counters[bundle.value] += 1
                return bundle
        try:
            for item in (*bundle.blocks, bundle.record):
                count = self._shape.pages_bytes(item.depth - item.first)
                source = pages_row.cut(self._shape.pages_bytes(item.first - first), count)
                if isinstance(item, Record):
                    source = [*state_row.cut(0, len(state_row)), *source]
                    count += len(state_row)
                copy(source, self._host.views(item, count))
        except BaseException:
            with self._lock:
                self._writer.release(bundle)
                self._host.give_back((*bundle.blocks, bundle.record))
            raise
        with self._lock:
            self._counters[PutOutcome.ACCEPTED.value] += 1
            self._writer.add(bundle)
        return PutOutcome.ACCEPTED

    def lookup(self, token_ids: Tokens, salt: str, *, base: int = 0, above: int = 0) -> Match | None:
        """Return the stored bundle of the longest prefix beyond `above` tokens; None = there is none.

        `token_ids` are the tokens from whose states the engine can resume: the prompt without its last token.
        `base` is the number of tokens whose pages the engine has already, a multiple of the page size.
        """
        whole_pages(base, self._shape.page_size, "the base")
        names = self._names(token_ids, salt, whole=False)
        page = self._shape.page_size
        with self._lock:
            for depth in range(names.tokens, above // page * page, -page):
                record = self._record(names, depth)
                match = None if record is None else self._match(record, names, min(base, depth))
                if match is not None:
                    return match
        return None

    def read(self, match: Match, state: Buffers, pages: Buffers) -> ReadOutcome:
        """Read a bundle into the buffers `state` and `pages`, and verify its checksums.

        `state` has `match.state_bytes` bytes, and `pages` has `match.pages_bytes` bytes for the pages of the
        tokens [match.base, match.depth) in order. The buffers hold the bundle only if the result is VALID.
        Nothing writes to them after the call has returned. Raises SizeMismatch.
        """
        state_row, pages_row = ByteRow(state), ByteRow(pages)
        _same_size(state_row, match.state_bytes, "state")
        _same_size(pages_row, match.pages_bytes, "pages")
        with self._lock:
            items = [self._current(item) for item in match.items]
            held = [item for item in items if item is not None]
            if self._closed or len(held) < len(items):
                return self._count(ReadOutcome.GONE)
            for item in held:
                item.references += 1
        outcome, damaged = ReadOutcome.GONE, None
        try:
            work = SharedWork(Landing(self._shape, state_row, pages_row, match.base).shares(held), self._read)
            work.run(self._helpers, min(HELPERS, match.total_bytes // SHARE_BYTES))
            damaged = None if work.failed is None else work.failed.item
            outcome = ReadOutcome.VALID if damaged is None else ReadOutcome.CORRUPT
        except FileNotFoundError:
            # Another program removed the file: the record is useless, and the disk itself works.
            damaged = held[0]
        except OSError as error:
            self._writer.switch_off(error)
        finally:
            with self._lock:
                self._end_read(held, damaged, outcome, match)
        return outcome

    def withdraw(self, token_ids: Tokens, salt: str) -> None:
        """Drop the bundle of this prefix, which is wrong, and all records that share its last whole block.

        The blocks of the prefix are dropped, too: an engine that needs one computes it again. A prefix that
        has no whole block shares none, so deeper records have to be withdrawn by their own prefixes.
        """
        names = self._names(token_ids, salt, whole=True)
        key, blocks = names.key(names.tokens), [names.key(end) for end in self._block_ends(names)]
        last = blocks[-1] if blocks else None
        with self._lock:
            self._writer.withdraw(key, last)
            for tier in self._tiers:
                for record in list(tier.records.values()):
                    if record.key == key or last in record.block_keys:
                        tier.drop(record)
                for block in blocks:
                    if block in tier.blocks:
                        tier.drop(tier.blocks[block])
            self._writer.wake()

    def status(self) -> StoreStatus:
        """Return the contents of the tiers, and the counters."""
        with self._lock:
            tiers = {tier.name: tier.status() for tier in self._tiers if tier.budget_bytes}
            return StoreStatus(tiers, dict(self._counters), self._writer.waiting)

    def drain(self, seconds: float) -> bool:
        """Wait until the writer has stored everything; return False if `seconds` were not enough."""
        return self._writer.drain(seconds)

    def save(self, seconds: float) -> bool:
        """Move the bundles in host memory to disk, the most valuable first; return whether all were moved.

        An engine calls this when it ends: afterwards the host tier accepts no more bundles.
        """
        return self._writer.save(seconds)

    def close(self) -> None:
        """Stop the writer, drop the bundles that wait for it, and unlock the directory."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._writer.close()
        self._helpers.shutdown()
        with self._lock:
            for tier in self._tiers:
                tier.reason = tier.reason or "the store is closed"
            if self._disk is not None:
                with suppress(OSError):
                    self._disk.remove_files()
                self._disk.folder.close()
                self._disk.switch_off(self._disk.reason)
            self._host.clear()

    def _names(self, token_ids: Tokens, salt: str, *, whole: bool) -> PrefixNames:
        if whole:
            whole_pages(len(token_ids), self._shape.page_size, "the prefix")
            if not len(token_ids):
                raise SizeMismatch("the prefix has no tokens: give at least one page")
        return PrefixNames(self._chain, self._shape.block_tokens, token_ids, salt)

    def _reserve(self, names: PrefixNames, first: int) -> StagedBundle | PutOutcome:
        """Reserve staging memory for the parts of a bundle that no tier has, and return them as a bundle.

        The result is the outcome of the put instead, if all parts are stored already, no tier takes the
        bundle, or there is no room for it.
        """
        shape, depth = self._shape, names.tokens
        ends = list(self._missing_blocks(names))
        if not ends and self._has_record(names):
            return PutOutcome.KNOWN
        record_bytes = shape.state_bytes + shape.pages_bytes(depth - shape.tail_start(depth))
        largest = max((tier.budget_bytes for tier in self._tiers if tier.on), default=0)
        if self._closed or record_bytes > largest:
            return PutOutcome.OFF
        if self._writer.waiting >= MOST_WAITING:
            return PutOutcome.DROPPED
        spans = [(end - shape.block_tokens, end) for end in ends if end - shape.block_tokens >= first]
        sizes = [shape.pages_bytes(shape.block_tokens)] * len(spans) + [record_bytes]
        if sum(map(rounded, sizes)) > self._host.pool.capacity:
            return PutOutcome.OFF
        places = self._host.take_all(sizes)
        if places is None:
            return PutOutcome.DROPPED
        blocks = [
            self._host.block(names.key(end), names.digest(end), start, end, place)
            for (start, end), place in zip(spans, places[:-1], strict=True)
        ]
        block_ends = self._block_ends(names)
        record = self._host.record(
            names.key(depth), names.digest(depth), shape.tail_start(depth), depth, places[-1],
            tuple(names.key(end) for end in block_ends),
        )  # fmt: skip
        shallower = [names.key(above) for above in range(depth - shape.page_size, 0, -shape.page_size)]
        digests = {names.key(end): names.digest(end) for end in block_ends}
        bundle = StagedBundle(record, blocks, digests, shallower)
        self._writer.reserve(bundle)
        return bundle

    def _block_ends(self, names: PrefixNames) -> range:
        """Return the depths, in tokens, at which the blocks of the whole prefix end."""
        step = self._shape.block_tokens
        return range(step, self._shape.blocks_before(names.tokens) * step + 1, step)

    def _missing_blocks(self, names: PrefixNames) -> Iterator[int]:
        """Yield the ends of those blocks of the prefix that are neither stored nor waiting to be stored."""
        for end in self._block_ends(names):
            key, digest = names.key(end), names.digest(end)
            if self._block(key, digest) is None and self._writer.blocks.get(key) != digest:
                yield end

    def _has_record(self, names: PrefixNames) -> bool:
        """Return whether the record of the whole prefix is stored, or waits to be stored."""
        if self._record(names, names.tokens) is not None:
            return True
        return self._writer.records.get(names.key(names.tokens)) == names.digest(names.tokens)

    def _record(self, names: PrefixNames, depth: int) -> Record | None:
        """Return the stored record of the prefix of `depth` tokens; None = no tier has one."""
        key = names.key(depth)
        for tier in self._tiers:
            record = tier.records.get(key)
            if record is not None and record.digest == names.digest(depth):
                return record
        return None

    def _block(self, key: int, digest: bytes) -> Item | None:
        for tier in self._tiers:
            block = tier.blocks.get(key)
            if block is not None and block.digest == digest:
                return block
        return None

    def _match(self, record: Record, names: PrefixNames, base: int) -> Match | None:
        """Return the match for a record; None = a block that the record needs is missing."""
        shape = self._shape
        items: list[Item] = [record]
        for end in self._block_ends(names):
            if base < end <= record.first:
                block = self._block(names.key(end), names.digest(end))
                if block is None:
                    return None
                items.append(block)
        sizes = {item: shape.pages_bytes(item.depth - max(base, item.first)) for item in items}
        sizes[record] += shape.state_bytes
        from_disk = sum(size for item, size in sizes.items() if item.keeper is self._disk)
        pages_bytes = shape.pages_bytes(record.depth - base)
        return Match(record.depth, base, shape.state_bytes, pages_bytes, from_disk, tuple(items))

    def _current(self, item: Item) -> Item | None:
        """Return the item, or its copy in another tier if it was moved there after the lookup.

        The result is None if no tier has it any more.
        """
        if not item.gone:
            return item
        if not isinstance(item, Record):
            return self._block(item.key, item.digest)
        for tier in self._tiers:
            record = tier.records.get(item.key)
            if record is not None and record.digest == item.digest:
                return record
        return None

    def _read(self, share: Share) -> bool:
        """Read one share of a bundle; return False if the share is damaged. Raises OSError."""
        item, targets = share
        if item.keeper is self._host:
            total = self._shape.pages_bytes(item.depth - item.first)
            total += self._shape.state_bytes if isinstance(item, Record) else 0
            return self._host.read(item, targets, total)
        assert self._disk is not None
        return self._disk.read(item, targets)

    def _end_read(self, held: list[Item], damaged: Item | None, outcome: ReadOutcome, match: Match) -> None:
        record = held[0]
        if outcome is ReadOutcome.VALID:
            source = "disk" if match.disk_bytes else "host"
            self._counters[f"restored_{source}"] += 1
            self._counters["restored_bytes"] += match.total_bytes
            if isinstance(record, Record) and not record.gone:
                record.keeper.touch(record)
        else:
            self._counters[outcome.value] += 1
        if damaged is not None:
            damaged.keeper.drop(damaged)
        for item in held:
            let_go(item)
        self._writer.wake()

    def _count(self, outcome: ReadOutcome) -> ReadOutcome:
        self._counters[outcome.value] += 1
        return outcome


def _same_size(row: ByteRow, size: int, what: str) -> None:
    if len(row) != size:
        raise SizeMismatch(f"the buffers of the {what} have {len(row)} bytes: give exactly {size}")
