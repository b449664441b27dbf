"""Bundles in memory: a state and a run of attention pages, as segments of an arena and as memoryviews.

The buffers of a bundle are a sequence of memoryviews: the state of one slot first, then the pages in the
order of their tokens, each buffer one or more whole pages. `pieces` cuts them by one side of a slice plan.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from mamba_transfer.layout import StateLayout
from mamba_transfer.slice_plan import Portion

Buffers = Sequence[memoryview]
"""Memory of a bundle: the state, then whole pages."""


class Segment(NamedTuple):
    """A run of bytes within an arena."""

    offset: int
    length: int


def slot_segments(layout: StateLayout, slot: int) -> list[Segment]:
    """Return the bytes of the state in slot `slot`."""
    return [Segment(slot * layout.slab_bytes, layout.state_bytes)]


def page_segments(layout: StateLayout, pages: Sequence[int]) -> list[Segment]:
    """Return the bytes of `pages`, in that order: one segment per run of adjacent pages."""
    size = layout.page_bytes
    segments: list[Segment] = []
    for page in pages if size else ():
        if segments and segments[-1].offset + segments[-1].length == page * size:
            segments[-1] = Segment(segments[-1].offset, segments[-1].length + size)
        else:
            segments.append(Segment(page * size, size))
    return segments


def arena_buffers(
    arena: memoryview, layout: StateLayout, slot: int, pages: Sequence[int]
) -> list[memoryview]:
    """Return the buffers of the bundle in slot `slot` and `pages`, without a copy. `arena`: plain bytes."""
    segments = (*slot_segments(layout, slot), *page_segments(layout, pages))
    return [arena[segment.offset : segment.offset + segment.length] for segment in segments]


def bundle_bytes(layout: StateLayout, pages: int) -> int:
    """Return the bytes of a bundle with `pages` pages."""
    return layout.state_bytes + pages * layout.page_bytes


def pieces(
    portion: Portion, side: Literal["source", "destination"], layout: StateLayout, buffers: Buffers
) -> list[memoryview]:
    """Return the parts of `buffers` that travel in `portion`, in the order of the stream, without a copy.

    Raises ValueError if the buffers are not a state and whole pages of `layout`.
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
