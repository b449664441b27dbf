"""`Landing`: the buffers of one read, and which parts of an item land where in them."""

from collections.abc import Iterator
from typing import NamedTuple

from mamba_tier.bundle_shape import BundleShape
from mamba_tier.byte_row import Buffers, ByteRow
from mamba_tier.items import Item, Record
from mamba_tier.record_header import Part, parts

SHARE_BYTES = 4 << 20
"""Bytes of one item that one thread reads before it takes the next share."""


class Target(NamedTuple):
    """A part of an item's bytes, and the buffers that it lands in."""

    part: Part
    buffers: Buffers


class Share(NamedTuple):
    """A piece of work of a read: adjacent parts of one item."""

    item: Item
    targets: list[Target]


class Landing:
    """The landing buffers of a bundle without the pages of [0, base)."""

    def __init__(self, shape: BundleShape, state: ByteRow, pages: ByteRow, base: int) -> None:
        self._shape, self._state, self._pages, self._base = shape, state, pages, base

    def shares(self, items: list[Item]) -> Iterator[Share]:
        """Yield the work of reading the items."""
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
        # Where the item's pages begin in the landing buffers: negative where the base is behind.
        offset = shape.pages_bytes(item.first) - shape.pages_bytes(self._base) - state_bytes
        for part in parts(shape, item.depth - item.first, is_record=isinstance(item, Record)):
            if part.start < state_bytes:
                yield Target(part, self._state.cut(part.start, part.length))
                continue
            start = part.start + offset
            if start >= 0:
                yield Target(part, self._pages.cut(start, part.length))
            elif start + part.length > 0:
                # The checksum is over the whole part: the pages before the base are read and not kept.
                unwanted = memoryview(bytearray(-start))
                yield Target(part, [unwanted, *self._pages.cut(0, start + part.length)])
