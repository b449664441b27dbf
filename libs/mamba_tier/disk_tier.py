"""`DiskTier`: the tier on disk: an index of the bundles in the files of a `DiskFolder`.

Only the writer of the store writes and removes files. A record is a state with its last pages; a block holds
pages that several records share.
"""

import contextlib
import os
from collections import deque
from collections.abc import Iterator, Mapping
from typing import cast

from mamba_tier.bundle_shape import BundleShape
from mamba_tier.byte_row import Buffers, checksum
from mamba_tier.disk_folder import DiskFolder, StoredFile, read_all, read_header
from mamba_tier.host_pool import rounded
from mamba_tier.items import Item, Record
from mamba_tier.landing import Target
from mamba_tier.record_header import PART_BYTES, Header, encoded, packed, part_pages, parts, unpacked
from mamba_tier.tier_index import TierIndex

RUN_BYTES = 1 << 20
"""Bytes that one system call reads. They are verified next, while they are still in the processor's cache."""


class DiskTier(TierIndex):
    """The tier on disk: each record and each block is a file with its own header.

    Its files take at most `budget_bytes`.
    """

    def __init__(self, folder: DiskFolder, shape: BundleShape, budget_bytes: int) -> None:
        super().__init__("disk", budget_bytes)
        self.folder = folder
        self._shape = shape
        self._removals: deque[str] = deque()

    def scan(self) -> Mapping[str, int]:
        """Fill the index from the headers of all files. Return the numbers of `corrupt` and `stale` files."""
        counts = {"corrupt": 0, "stale": 0}
        records: list[Record] = []
        for file in self.folder.files():
            header = file.header
            if header is None or not self._is_current(header):
                counts["corrupt" if header is None else "stale"] += 1
                self._removals.append(file.name)
                continue
            item = self._item(header, file)
            if isinstance(item, Record):
                records.append(item)
            else:
                # Of two files with the same key, the newer one was written because the older one was damaged.
                if (older := self.blocks.get(item.key)) is not None:
                    self.forget(older)
                self.add_block(item)
        for record in records:
            record.blocks = [self.blocks[key] for key in record.block_keys if key in self.blocks]
            for block in record.blocks:
                block.references += 1
            self.add_record(record)
        for block in [block for block in self.blocks.values() if not block.references]:
            self.forget(block)
        self.make_room(0)
        return counts

    def prepare(self, item: Item) -> tuple[bytes, int]:
        """Return the header of the file for an item of the host tier, and the size of the file on disk."""
        shape = self._shape
        is_record = isinstance(item, Record)
        header = Header(
            shape.fingerprint, shape.layout, is_record, shape.page_size,
            shape.state_bytes if is_record else 0, shape.page_bytes,
            item.key, item.digest, item.first, item.depth,
            item.tokens if isinstance(item, Record) else 0, PART_BYTES, part_pages(shape), item.sums,
            packed(item.block_keys) if isinstance(item, Record) else b"",
        )  # fmt: skip
        raw = encoded(header)
        return raw, rounded(len(raw) + header.payload_bytes)

    def write(self, source: Item, header: bytes, payload: Buffers, cost: int, *, sync: bool) -> Item:
        """Write a file for `source`, and return its item for the index. Raises OSError.

        The file has `header`, then `payload`, and takes `cost` bytes of the budget. With `sync` it is forced
        to the device.
        """
        name = self.folder.write(source.key, [memoryview(header), *payload], sync=sync)
        facts = (self, source.key, source.digest, source.first, source.depth, cost, name)
        if isinstance(source, Record):
            return Record(*facts, block_keys=source.block_keys, tokens=source.tokens, hits=source.hits)
        return Item(*facts)

    def read(self, item: Item, targets: list[Target]) -> bool:
        """Read parts of an item into landing buffers; return whether they are intact. Raises OSError.

        The result is False if the file is of another item, is damaged or ends early, or if a part has a wrong
        checksum.
        """
        descriptor = self.folder.open(cast("str", item.place))
        try:
            front = read_header(descriptor)
            if front is None or not self._is_same(front[0], item):
                return False
            header, payload = front
            sums = unpacked(header.sums)
            for run in _runs(targets):
                buffers = [buffer for target in run for buffer in target.buffers]
                if not read_all(descriptor, buffers, payload + run[0].part.start):
                    return False
                if any(checksum(target.buffers) != sums[target.part.number] for target in run):
                    return False
            return True
        finally:
            os.close(descriptor)

    def touch(self, record: Record) -> None:
        """Count a use of the record, and record it in the file for the order of the next start."""
        super().touch(record)
        self.folder.touch(cast("str", record.place))

    def drop(self, item: Item) -> None:
        """Remove an item from the index.

        A block is dropped because it is damaged or was withdrawn: its file is queued for removal at once,
        even if records refer to the block.
        """
        if item.gone or isinstance(item, Record):
            super().drop(item)
            return
        super().drop(item)
        self.used_bytes -= item.cost
        item.cost = 0
        self._free(item)

    def remove_files(self) -> None:
        """Remove the files of all dropped items. Only the writer calls this. Raises OSError."""
        # A reader may switch the tier off at the same time, which empties the queue.
        with contextlib.suppress(IndexError):
            while True:
                self.folder.remove(self._removals.popleft())

    @property
    def has_removals(self) -> bool:
        """Whether files of dropped items wait to be removed."""
        return bool(self._removals)

    def switch_off(self, reason: str) -> None:
        """Store and return nothing any more, for `reason`. The files remain for the next start."""
        self.reason = reason
        self.clear()
        self._removals.clear()

    def _is_same(self, header: Header, item: Item) -> bool:
        return self._is_current(header) and (header.key, header.digest, header.first, header.depth) == (
            item.key, item.digest, item.first, item.depth,
        )  # fmt: skip

    def _is_current(self, header: Header) -> bool:
        shape = self._shape
        same_model = (header.fingerprint, header.layout) == (shape.fingerprint, shape.layout)
        written = (header.page_size, header.page_bytes, header.part_bytes, header.part_pages)
        same = same_model and written == (shape.page_size, shape.page_bytes, PART_BYTES, part_pages(shape))
        pages = (header.depth - header.first) // shape.page_size
        number = sum(1 for _ in parts(shape, header.depth - header.first, is_record=header.is_record))
        if not same or pages < 0 or len(header.sums) != 8 * number:
            return False
        # Another release may have written blocks of another size.
        if not header.is_record:
            return pages == shape.block_pages and not header.depth % shape.block_tokens
        blocks = shape.blocks_before(header.first)
        whole = header.first == shape.tail_start(header.depth)
        return header.state_bytes == shape.state_bytes and whole and len(header.block_keys) == 8 * blocks

    def _item(self, header: Header, file: StoredFile) -> Item:
        facts = (self, header.key, header.digest, header.first, header.depth, rounded(file.size), file.name)
        if not header.is_record:
            return Item(*facts)
        return Record(*facts, block_keys=tuple(unpacked(header.block_keys)), tokens=header.tokens)

    def _free(self, item: Item) -> None:
        # A tier that is off keeps its files for the next start.
        if self.on:
            self._removals.append(cast("str", item.place))


def _runs(targets: list[Target]) -> Iterator[list[Target]]:
    """Yield groups of adjacent parts; one system call reads each group."""
    run: list[Target] = []
    for target in targets:
        if run and target.part.start + target.part.length - run[0].part.start > RUN_BYTES:
            yield run
            run = []
        run.append(target)
    if run:
        yield run
