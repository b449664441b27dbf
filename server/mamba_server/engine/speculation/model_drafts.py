"""`ModelDrafts`: proposes what a second, smaller model writes. Pure, but for device work given to it.

The scheduler asks for drafts before each launch. The draft model first reads what each sequence has got since
it last saw it, the last token included, then writes drafts on a copy of its state. So a rejected draft costs
nothing and nothing is rolled back: the first state knows committed tokens alone. A sequence whose text is not
read to its end yet, or for which the draft model has no room, decodes as ever.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mamba_server.cache import Ints, Tokens, aligned_piece
from mamba_server.engine.scheduling.draft_rows import Rest
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.draft_counts import DraftCounts
from mamba_server.engine.speculation.draft_lanes import DraftLane, DraftLanes

log = logging.getLogger(__name__)
KIND = "model"
FAILURES_IN_A_ROW = 3
"""Consecutive failures of the draft model after which it is not asked any more."""


@dataclass(frozen=True, slots=True)
class DraftPiece:
    """A piece of one sequence's text that the draft model reads, and how many tokens it drafts behind it."""

    lane: DraftLane
    row: int
    """Persistent row of the sequence, whose sampling parameters the drafts follow."""
    start: int
    """Number of tokens that were read before."""
    token_ids: Tokens
    """Tokens of the piece."""
    drafts: int
    """Number of tokens to draft; 0 = the text goes on behind the piece."""
    pages: Ints
    """Pages of the lane, including the pages of the drafts."""

    @property
    def stop(self) -> int:
        """Number of tokens that are read behind the piece."""
        return self.start + len(self.token_ids)


class ModelDrafts:
    """Proposes drafts that a second, smaller model writes, for one engine.

    `most` is the largest number of drafts behind a token, `longest` the most tokens of a text that the draft
    model reads, `vocabulary` the number of token ids that it knows, `budget` the most tokens that it reads
    between two steps, and `chunk` the tokens of a chunk. The boot sets `compute`, which returns the drafts of
    each piece, `room`, as in `HeadDrafts`, and `give_up`, which ends the drafts of this engine for a reason.
    """

    def __init__(
        self, most: int, lanes: DraftLanes, *, longest: int, vocabulary: int, budget: int, chunk: int
    ) -> None:
        self.most, self.lanes = most, lanes
        self._longest, self._vocabulary = longest, vocabulary
        self._budget, self._chunk = budget, chunk
        self.compute: Callable[[list[DraftPiece]], list[Tokens]] | None = None
        self.room: Callable[[Sequence, int], int] | None = None
        self.give_up: Callable[[str], None] | None = None
        self._failures = 0
        self._counts = DraftCounts(KIND)
        self.rest = Rest()

    def wanted(self) -> bool:
        """Return True: every step should have drafts."""
        return True

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the tokens that the draft model writes behind the sequences it has read, by their index."""
        assert self.compute is not None
        planned = self._pieces(decodes)
        if not planned:
            return {}
        pieces = [piece for _, piece in planned]
        try:
            drafts = self.compute(pieces)
        except Exception as error:
            self._failed(pieces, error)
            return {}
        self._failures = 0
        for piece in pieces:
            piece.lane.tokens_read = piece.stop
        each = zip(planned, drafts, strict=True)
        return {index: tokens for (index, _), tokens in each if len(tokens)}

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that `accepted` of the `drafted` tokens of a draft were right."""
        self._counts.checked(KIND, drafted, accepted)

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Count a committed step: its drafts, and the accepted ones that it computed into states."""
        self._counts.step_ended(schedule)

    def counters(self) -> dict[str, float]:
        """Return counts since the start."""
        return self._counts.counters()

    # --- pieces --------------------------------------------------------------------------------------

    def _pieces(self, decodes: list[Sequence]) -> list[tuple[int, DraftPiece]]:
        """Return the pieces that the draft model reads before this step, with the index of each sequence.

        Short pieces come first, so that a long prompt takes no drafts from sequences that are being read
        along.
        """
        followed = []
        for index, sequence in enumerate(decodes):
            if sequence.in_flight:
                continue
            if sequence.known_tokens + self.most > self._longest:
                self.lanes.release(sequence)
            elif (lane := self.lanes.of(sequence, self.most)) is not None:
                followed.append((sequence.known_tokens - lane.tokens_read, index, lane))
        followed.sort(key=lambda each: each[:2])
        budget = self._budget
        pieces: list[tuple[int, DraftPiece]] = []
        for unread, index, lane in followed:
            if (piece := self._piece(lane, unread, budget)) is not None:
                budget -= len(piece.token_ids)
                pieces.append((index, piece))
        return pieces

    def _piece(self, lane: DraftLane, unread: int, budget: int) -> DraftPiece | None:
        """Return the next piece of the sequence of `lane`, of at most `budget` of its `unread` tokens.

        The result is None if the draft model reads nothing of the sequence now: the budget is used up, no
        page is free, a token is unknown to the model, or the unread tokens are few and no draft may follow
        them.
        """
        assert self.room is not None
        sequence, start = lane.sequence, lane.tokens_read
        tokens = aligned_piece(start, unread, budget, self._chunk)
        if tokens <= 0:
            return None
        drafts = 0
        if tokens == unread:
            drafts = self.room(sequence, self.most)
            if not drafts and unread <= self.most:
                # Read with the next tokens: the step ends a page and has no drafts.
                return None
        # The last draft is not read.
        if not self.lanes.extend(lane, start + tokens + max(drafts - 1, 0)):
            return None
        token_ids = sequence.token_ids[start : start + tokens].copy()
        if token_ids.max() >= self._vocabulary:
            # The embedding of the served model may be padded to more ids than the draft model has.
            return None
        pages = np.array(lane.pages, np.int32)
        return DraftPiece(lane, sequence.row, start, token_ids, drafts, pages)

    def _failed(self, pieces: list[DraftPiece], error: Exception) -> None:
        """Forget the sequences of a call that failed, whose states are of no known depth."""
        # The step decodes without drafts; a device that is lost fails there, where the core sees it.
        why = f"{type(error).__name__}: {error}"
        log.warning("the draft model failed: %s", why)
        for piece in pieces:
            self.lanes.release(piece.lane.sequence)
        self._failures += 1
        if self._failures >= FAILURES_IN_A_ROW and self.give_up is not None:
            self.give_up(f"the draft model failed {self._failures} times in a row, at last with {why}")
