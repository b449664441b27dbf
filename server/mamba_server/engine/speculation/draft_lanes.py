"""Lanes of a draft model: which sequences it follows, how far it has read them, and their pages. Pure.

A lane holds two states of the draft model, and pages from a pool that all lanes share. `ModelDrafts` gives
lanes to sequences and takes them back; nothing here knows of devices.
"""

from dataclasses import dataclass

import numpy as np

from mamba_server.cache import Ints, LedgerViolation
from mamba_server.engine.sequences.sequence import Sequence


@dataclass(slots=True, eq=False)
class DraftLane:
    """The two states and the pages in which a draft model follows one sequence."""

    number: int
    """Number of the lane: its row in the table of pages, and the place of its states."""
    sequence: Sequence
    pages: list[int]
    """Pages in the order of the tokens."""
    tokens_read: int = 0
    """Tokens of the sequence that are in the lane's first state."""
    pages_sent: int = 0
    """Number of pages, from the first on, that the device's table has, too."""


class DraftLanes:
    """All lanes and pages of one draft model; page 0 belongs to nobody.

    A lane holds two states of the draft model and the pages of one sequence. `pages` is the number of pages
    with page 0, or 0 for a model without attention; `table_width` is the most pages of a lane.
    """

    def __init__(self, lanes: int, *, pages: int, page_size: int, table_width: int) -> None:
        self.lanes, self._page_size, self._table_width = lanes, page_size, table_width
        self._has_pages = pages > 0
        self._all_pages = max(pages - 1, 0)
        self._free_pages = list(range(self._all_pages, 0, -1))
        self._free_lanes = list(range(lanes - 1, -1, -1))
        self._held: dict[tuple[str, int], DraftLane] = {}

    @property
    def held(self) -> int:
        """Number of lanes that a sequence holds."""
        return len(self._held)

    def of(self, sequence: Sequence, drafts: int) -> DraftLane | None:
        """Return the lane of a sequence; None = it has none, and cannot have one.

        It gets a free one if there are pages for its known tokens and `drafts` more.
        """
        if (lane := self._held.get(sequence.key)) is not None:
            return lane
        if not self._free_lanes or not self._has_room(0, sequence.known_tokens + drafts):
            return None
        lane = DraftLane(self._free_lanes.pop(), sequence, [])
        self._held[sequence.key] = lane
        self.extend(lane, sequence.known_tokens + drafts)
        return lane

    def extend(self, lane: DraftLane, tokens: int) -> bool:
        """Take the pages that `tokens` tokens of a lane need; take none and return False if short."""
        if not self._has_room(len(lane.pages), tokens):
            return False
        while self._has_pages and len(lane.pages) * self._page_size < tokens:
            lane.pages.append(self._free_pages.pop())
        return True

    def release(self, sequence: Sequence) -> None:
        """Take back the lane of `sequence`, if it has one; should it come back, its text is read again."""
        if (lane := self._held.pop(sequence.key, None)) is not None:
            self._free_lanes.append(lane.number)
            self._free_pages.extend(lane.pages)

    def unsent_pages(self, lanes: list[DraftLane]) -> tuple[Ints, Ints]:
        """Return places in the flattened table, and pages, that the device's table lacks.

        The pages count as sent from now on.
        """
        places: list[int] = []
        pages: list[int] = []
        for lane in lanes:
            first, end = lane.pages_sent, len(lane.pages)
            places.extend(
                range(lane.number * self._table_width + first, lane.number * self._table_width + end)
            )
            pages.extend(lane.pages[first:])
            lane.pages_sent = end
        return np.array(places, np.int32), np.array(pages, np.int32)

    def check(self) -> None:
        """Raise LedgerViolation unless each lane and page is free or held once."""
        lanes = [*self._free_lanes, *(lane.number for lane in self._held.values())]
        pages = [*self._free_pages, *(page for lane in self._held.values() for page in lane.pages)]
        if sorted(lanes) != list(range(self.lanes)):
            raise LedgerViolation(f"draft model: {sorted(lanes)} are free or held of {self.lanes} lanes")
        if sorted(pages) != list(range(1, self._all_pages + 1)):
            raise LedgerViolation(
                f"draft model: of {self._all_pages} pages, {len(pages)} are free or held, {len(set(pages))} "
                "of them different"
            )

    def _has_room(self, pages: int, tokens: int) -> bool:
        if not self._has_pages:
            return True
        needed = -(-tokens // self._page_size)
        return needed <= self._table_width and needed - pages <= len(self._free_pages)
