"""Bundles in memory: the state of one checkpoint and its attention pages, as runs of bytes of an arena.

The buffers of a bundle are a sequence of memoryviews: first the state of one slot, then the pages in the
order of their tokens, where each buffer holds one or more whole pages. `pieces` returns the parts of the
buffers that one portion of a slice plan transfers.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mamba_transfer.layout import StateLayout
from mamba_transfer.slice_plan import Portion

Buffers = Sequence[memoryview]
"""Memory of one bundle: first its state, then its whole pages."""


class Segment(NamedTuple):
    """A run of bytes within an arena, by offset and length."""

    offset: int
    length: int


def slot_segments(layout: StateLayout, slot: int) -> list[Segment]:
    """Return the byte ranges of the state in slot `slot` of an arena."""
    return [Segment(slot * layout.slab_bytes, layout.state_bytes)]


def page_segments(layout: StateLayout, pages: Sequence[int]) -> list[Segment]:
    """Return the byte ranges of `pages` in that order: one segment for each run of adjacent pages."""
    size = layout.page_bytes
    if not size or not pages:
        return []
    # The loop of an engine calls this between two steps, so a page within a run costs no object of its own.
    segments: list[Segment] = []
    first = following = pages[0]
    for page in pages:
        if page != following:
            segments.append(Segment(first * size, (following - first) * size))
            first = page
        following = page + 1
    segments.append(Segment(first * size, (following - first) * size))
    return segments


def arena_buffers(
    arena: memoryview, layout: StateLayout, slot: int, pages: Sequence[int]
) -> list[memoryview]:
    """Return the buffers of the bundle in slot `slot` and `pages`, which share the arena's memory.

    `arena` is the memory of the whole arena as plain bytes.
    """
    segments = (*slot_segments(layout, slot), *page_segments(layout, pages))
    return [arena[segment.offset : segment.offset + segment.length] for segment in segments]


def bundle_bytes(layout: StateLayout, pages: int) -> int:
    """Return the size in bytes of a bundle with one state and `pages` pages."""
    return layout.state_bytes + pages * layout.page_bytes


def pieces(
    portion: Portion, side: Literal["source", "destination"], layout: StateLayout, buffers: Buffers
) -> list[memoryview]:
    """Return the parts of `buffers` that `portion` transfers, in the order in which they are sent.

    `side` says whether `buffers` belong to the source or to the destination. The parts share the memory of
    `buffers`. Raises ValueError if the buffers are not a state and whole pages of `layout`.
    """
    state, *runs = buffers
    size = layout.page_bytes
    if state.nbytes != layout.state_bytes or any(not size or run.nbytes % size for run in runs):
        raise ValueError(
            f"the buffers have {[buffer.nbytes for buffer in buffers]} bytes, and a bundle is a state of "
            f"{layout.state_bytes} and whole pages of {size}"
        )
    place = 0 if side == "source" else 1
    cut = [state[copy[place] : copy[place] + copy.length] for copy in portion.state]
    if [(0, 0, size)] == [tuple(copy) for copy in portion.page]:
        return [*cut, *runs]
    for run in runs:
        for page in range(0, run.nbytes, size):
            cut += [run[page + copy[place] : page + copy[place] + copy.length] for copy in portion.page]
    return cut
