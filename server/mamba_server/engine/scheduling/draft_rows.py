"""Drafts of the decodes of a step, and what earlier drafts left to absorb. Pure.

The scheduler calls it between choosing the decodes of a step and launching them. It takes lanes and pages for
drafts, and preempts nobody for them: a row that gets none decodes as ever.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mamba_server.cache import Ints, StateCache, Tokens
from mamba_server.engine.sequences.output_grammar import masks_ahead
from mamba_server.engine.sequences.schedule import Absorption, Draft
from mamba_server.engine.sequences.sequence import Sequence


@dataclass(slots=True)
class Rest:
    """Steps for which a source of drafts is not asked, as long as the sequences that decode stay the same."""

    steps: int = 0
    """Number of steps that are left."""
    _planned: int = 0
    _decodes: int = 0
    _last: int = 0
    """Order of the sequence that joined last."""

    def begin(self, steps: int, decodes: list[Sequence]) -> None:
        """Begin a rest of `steps` steps of the sequences `decodes`."""
        self.steps = self._planned = steps
        self._decodes, self._last = len(decodes), decodes[-1].order

    def goes_on(self, decodes: list[Sequence]) -> bool:
        """Return whether a step of these sequences is one of the rest, and count it."""
        if not self.steps or len(decodes) != self._decodes or decodes[-1].order != self._last:
            return False
        self.steps -= 1
        return True

    @property
    def lasted(self) -> int:
        """Number of steps of the rest so far."""
        return self._planned - self.steps

    def end(self) -> int:
        """End the rest and return the number of steps that it lasted."""
        lasted = self.lasted
        self.steps = self._planned = 0
        return lasted


class Proposals(Protocol):
    """Proposes drafts: tokens that may follow in the answers of decoding sequences."""

    rest: Rest
    """Steps for which it is not asked."""

    most: int
    """Most drafts behind one token."""

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return tokens that may follow the last known token of decodes, by their index; at most `most`.

        Only decodes whose last token is known, in no launched step, may be named.
        """
        ...


def room_for_drafts(cache: StateCache, sequence: Sequence, most: int) -> int:
    """Return how many drafts a sequence may have, `most` at most; take the lane and the pages for them."""
    assert sequence.allocation is not None
    return cache.replay.room(sequence.allocation, sequence.prompt_len, most)


class DraftRows:
    """Plans the drafts of an engine's steps, and the accepted drafts that a step computes into states.

    `proposals` is where drafts come from; None = there are none. `mask_words` is the length of a mask of
    tokens, for answers that follow rules.
    """

    def __init__(self, cache: StateCache, proposals: Proposals | None, mask_words: int = 0) -> None:
        self._cache, self._proposals, self._mask_words = cache, proposals, mask_words

    def plan(self, decodes: list[Sequence], rows: Ints) -> tuple[tuple[Draft, ...], tuple[Absorption, ...]]:
        """Return the drafts of `decodes`, and the accepted drafts that the step computes before them.

        Called before the launch. `rows` are the rows of the decodes. Drafts take lanes and pages here.
        """
        if self._proposals is None or self._proposals.rest.goes_on(decodes):
            return (), ()
        replay = self._cache.replay
        absorbed = [] if replay.idle else self._absorptions(decodes, rows)
        proposed = self._proposals.propose(decodes)
        if not proposed and replay.idle:
            return (), ()
        for index in self._cache.replay.holders(rows):
            if index not in proposed:
                self._cache.replay.release(int(rows[index]))
        drafts = []
        for index, tokens in proposed.items():
            sequence = decodes[index]
            assert sequence.allocation is not None
            assert not sequence.in_flight
            usable, masks = self._usable(sequence, tokens[: self._proposals.most].astype(np.int32))
            room = room_for_drafts(self._cache, sequence, len(usable))
            if room:
                masks = None if masks is None else masks[: room + 1]
                drafts.append(Draft(index, sequence.allocation.lane, usable[:room], masks))
            else:
                self._cache.replay.release(sequence.row)
        if not replay.idle:
            # What waits is absorbed by the next step of its row, which therefore has to ask.
            self._proposals.rest.end()
        return tuple(drafts), tuple(absorbed)

    def _absorptions(self, decodes: list[Sequence], rows: Ints) -> list[Absorption]:
        """Return the inputs of accepted drafts that the lanes of `decodes` still hold.

        The step computes them into the states.
        """
        absorbed, waiting = [], self._cache.replay.waiting(rows)
        for index in np.flatnonzero(waiting).tolist():
            sequence = decodes[index]
            assert sequence.allocation is not None
            token = int(sequence.token_ids[sequence.allocation.depth])
            absorbed.append(Absorption(index, sequence.allocation.lane, int(waiting[index]), token))
        return absorbed

    def _usable(self, sequence: Sequence, tokens: Tokens) -> tuple[Tokens, Ints | None]:
        """Return the drafted tokens that the rules of the answer permit, and the masks of their rows.

        The masks are None if the answer follows no rules.
        """
        if sequence.grammar is None:
            return tokens, None
        masks = masks_ahead(sequence.grammar, tokens.tolist(), self._mask_words)
        return tokens[: len(masks) - 1], masks
