"""`Landing`: the buffers that one read fills, and the position of each part of an item in them.

Items are records and blocks of pages; a part is a run of an item's bytes with a checksum of its own.
"""

from collections.abc import Iterator
from typing import NamedTuple

from mamba_tier.bundle_shape import BundleShape
from mamba_tier.byte_row import Buffers, ByteRow
from mamba_tier.items import Item, Record
from mamba_tier.record_header import Part, parts

SHARE_BYTES = 4 << 20
"""Bytes of one item that a thread reads before it takes the next share of the work."""


class Target(NamedTuple):
    """A part of an item's bytes, and the buffers that it is read into."""

    part: Part
    buffers: Buffers


class Share(NamedTuple):
    """The part of a read that one thread does at a time: adjacent parts of one item."""

    item: Item
    targets: list[Target]


class Landing:
    """The buffers of one read, and which of them each part of a stored bundle is read into.

    The buffers take the state, and the pages from token `base` on.
    """

    def __init__(self, shape: BundleShape, state: ByteRow, pages: ByteRow, base: int) -> None:
        self._shape, self._state, self._pages, self._base = shape, state, pages, base

    def shares(self, items: list[Item]) -> Iterator[Share]:
        """Yield the units of work in which threads read the items."""
        for item in items:
            targets: list[Target] = []
            size = 0
            for target in self._targets(item):
                if size and size + target.part.length > SHARE_BYTES:
                    yield Share(item, targets)
                    targets, size = [], 0
                targets.append(target)
                size += target.part.length
            if targets:
                yield Share(item, targets)

    def _targets(self, item: Item) -> Iterator[Target]:
        shape = self._shape
        state_bytes = shape.state_bytes if isinstance(item, Record) else 0
        # Offset of the item's pages in the landing buffers; negative if they begin before the base.
        offset = shape.pages_bytes(item.first) - shape.pages_bytes(self._base) - state_bytes
        for part in parts(shape, item.depth - item.first, is_record=isinstance(item, Record)):
            if part.start < state_bytes:
                yield Target(part, self._state.cut(part.start, part.length))
                continue
            start = part.start + offset
            if start >= 0:
                yield Target(part, self._pages.cut(start, part.length))
            elif start + part.length > 0:
                # The checksum covers the whole part, so the pages before the base are read and discarded.
                unwanted = memoryview(bytearray(-start))
                yield Target(part, [unwanted, *self._pages.cut(0, start + part.length)])
