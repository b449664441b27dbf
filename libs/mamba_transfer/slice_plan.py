"""The slice plan: which bytes each tensor-parallel rank of the source sends to one rank of the destination.

A block of a layout is one kind of numbers, such as the states or the windows of all layers. A sub-block has a
checksum of its own: it is one layer of a block of the state, or a page. The heads and groups of the
destination are intersected with those of every source rank. Each byte of the destination is covered exactly
once; if that is impossible, the pair of layouts is refused. Both sides compute the same plan from both
layouts, so no offsets are sent.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Literal, NamedTuple

from mamba_transfer.errors import IncompatibleLayouts
from mamba_transfer.layout import StateLayout, TensorPart

Place = Literal["state", "page"]


class Copy(NamedTuple):
    """A run of bytes within one state or page that is contiguous at the source and at the destination."""

    source: int
    """Offset at the source, in bytes."""
    destination: int
    """Offset at the destination, in bytes."""
    length: int


class Portion(NamedTuple):
    """All bytes that one source rank sends, in the order of the destination's memory."""

    state: tuple[Copy, ...]
    """Copies within the state."""
    state_blocks: tuple[int, ...]
    """Size in bytes of each sub-block of the state. A sub-block is one layer of a block and has its own
    checksum."""
    page: tuple[Copy, ...]
    """Copies of each page. A page has one checksum."""

    @property
    def page_bytes(self) -> int:
        """Bytes of each page that this source rank sends."""
        return sum(copy.length for copy in self.page)

    def sizes(self, pages: int) -> list[int]:
        """Return the bytes of each sub-block of a bundle with `pages` pages, in the order of the stream."""
        size = self.page_bytes
        return [*self.state_blocks, *([size] * pages if size else [])]


class SlicePlan:
    """Plan of which bytes a destination rank receives from each source rank.

    Attributes:
        portions: bytes that each source rank sends, by rank; a rank that is not listed sends nothing.
    """

    def __init__(self, sources: Sequence[StateLayout], destination: StateLayout) -> None:
        """Compute the plan; `sources` are the layouts of all ranks of the source.

        Raises IncompatibleLayouts, which names the field, if a byte of the destination would not be covered
        exactly once.
        """
        for source in sources:
            if (field := destination.refusal(source)) is not None:
                raise IncompatibleLayouts(field)
        ranks = [source.rank for source in sources]
        if len(set(ranks)) != len(ranks):
            raise IncompatibleLayouts(f"rank ({ranks} at the source, where each may be only once)")
        state = _copies(sources, destination, "state")
        page = _copies(sources, destination, "page")
        self.portions = {
            rank: Portion(
                _merged(copy for copies in state[rank].values() for copy in copies),
                tuple(sum(copy.length for copy in copies) for copies in state[rank].values()),
                _merged(copy for copies in page[rank].values() for copy in copies),
            )
            for rank in sorted({*state, *page})
        }
        for place, size in (("state", destination.state_bytes), ("page", destination.page_bytes)):
            written = sum(
                copy.length for portion in self.portions.values() for copy in getattr(portion, place)
            )
            if written != size:
                # More would be written into memory that belongs to somebody else.
                raise IncompatibleLayouts(f"{place} (its parts have {written} bytes, and it has {size})")


@lru_cache(maxsize=16)
def plan_of_pair(source: StateLayout, destination: StateLayout) -> SlicePlan:
    """Return the plan from all ranks of the source's engine to one destination rank.

    Plans are cached for the next connection of the same two engines. Raises IncompatibleLayouts, which names
    the field.
    """
    if (field := destination.refusal(source)) is not None:
        raise IncompatibleLayouts(field)
    return SlicePlan([source.at(rank, source.ranks) for rank in range(source.ranks)], destination)


class _Rows(NamedTuple):
    """Where one part of a state or page lies in one row of a rank's memory."""

    layer: int
    offset: int
    """Offset in bytes of the part's first head or group on this rank."""


def _rows(layout: StateLayout, place: Place) -> Iterator[tuple[TensorPart, _Rows]]:
    """Yield every row of every part, in the order of memory."""
    parts = [part for part in layout.parts if part.place == place]
    blocks = [list(group) for _, group in groupby(parts, key=lambda part: part.block)]
    layers = max((part.layers for part in parts), default=0)
    if place == "page":
        # A page holds keys and values of one layer side by side, and behind all layers what it has once.
        each = [block for block in blocks if block[0].layers == layers]
        once = [block for block in blocks if block[0].layers != layers]
        order = [(block, layer) for layer in range(layers) for block in each]
        order += [(block, layer) for block in once for layer in range(block[0].layers)]
    else:
        # A slot holds all states before all windows.
        order = [(block, layer) for block in blocks for layer in range(layers)]
    offset = 0
    for block, layer in order:
        for _ in range(block[0].rows):
            for part in block:
                yield part, _Rows(layer, offset)
                offset += part.row_bytes


def _copies(
    sources: Sequence[StateLayout], destination: StateLayout, place: Place
) -> dict[int, dict[tuple[str, int], list[Copy]]]:
    """Return the copies by source rank, then by block and layer in the order of the destination's memory.

    `place` says whether the copies are within the state or within each page.
    """
    parts = [part for part in destination.parts if part.place == place]
    intervals = {part.name: _intervals(sources, part, destination) for part in parts}
    rows = {source.rank: list(_rows(source, place)) for source in sources}
    copies: dict[int, dict[tuple[str, int], list[Copy]]] = defaultdict(lambda: defaultdict(list))
    for number, (part, row) in enumerate(_rows(destination, place)):
        for rank, first, last in intervals[part.name]:
            other, source_row = rows[rank][number]
            size = part.unit_bytes
            copies[rank][part.block, row.layer].append(
                Copy(
                    source_row.offset + (first - other.first) * size,
                    row.offset + (first - part.first) * size,
                    (last - first) * size,
                )
            )
    return copies


def _intervals(
    sources: Sequence[StateLayout], part: TensorPart, destination: StateLayout
) -> list[tuple[int, int, int]]:
    """Return (source rank, first unit, unit after the last) for each run of units that one rank sends.

    Each head or group (unit) of `part` occurs once. Raises IncompatibleLayouts.
    """
    missing = [(part.first, part.last)]
    intervals = []
    for source in sorted(sources, key=lambda source: (not _same_share(source, destination), source.rank)):
        (other,) = (each for each in source.parts if each.name == part.name)
        rest = []
        for first, last in missing:
            start, stop = max(first, other.first), min(last, other.last)
            if start >= stop:
                rest.append((first, last))
                continue
            intervals.append((source.rank, start, stop))
            rest += [(low, high) for low, high in ((first, start), (stop, last)) if low < high]
        missing = rest
    if missing:
        ranges = ", ".join(f"{first} to {last - 1}" for first, last in missing)
        raise IncompatibleLayouts(f"{part.name} (no rank of the source has units {ranges})")
    return sorted(intervals, key=lambda interval: interval[1])


def _same_share(source: StateLayout, destination: StateLayout) -> bool:
    """Return whether two ranks hold the same share of the heads.

    Groups that several ranks hold are then read from the rank that the heads are read from.
    """
    return (
        source.rank * destination.ranks < (destination.rank + 1) * source.ranks
        and destination.rank * source.ranks < (source.rank + 1) * destination.ranks
    )


def _merged(copies: Iterable[Copy]) -> tuple[Copy, ...]:
    """Join copies that are adjacent both at the source and at the destination."""
    joined: list[Copy] = []
    for copy in copies:
        if joined:
            last = joined[-1]
            if (last.source + last.length, last.destination + last.length) == copy[:2]:
                joined[-1] = Copy(last.source, last.destination, last.length + copy.length)
                continue
        joined.append(copy)
    return tuple(joined)
