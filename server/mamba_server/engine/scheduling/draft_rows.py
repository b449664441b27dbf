"""Drafts of the decodes of a step, and what earlier drafts left to absorb. Pure.

The scheduler calls it between choosing the decodes of a step and launching them. It takes lanes and pages for
drafts, and preempts nobody for them: a row that gets none decodes as ever.
"""

from typing import Protocol

import numpy as np

from mamba_server.cache import Ints, StateCache, Tokens
from mamba_server.engine.sequences.schedule import Absorption, Draft
from mamba_server.engine.sequences.sequence import Sequence


class Proposals(Protocol):
    """Source of drafts."""

    most: int
    """Most drafts behind one token."""

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return tokens that may follow the last known token of decodes, by their index; at most `most`.

        Only decodes whose last token is known, in no launched step, may be named.
        """
        ...


class DraftRows:
    """Drafts of one engine's steps. `proposals`: their source; None = there are none."""

    def __init__(self, cache: StateCache, proposals: Proposals | None) -> None:
        self._cache, self._proposals = cache, proposals

    def plan(self, decodes: list[Sequence], rows: Ints) -> tuple[tuple[Draft, ...], tuple[Absorption, ...]]:
        """Return the drafts of the decodes, and what the step absorbs before them; take lanes and pages.

        `rows`: row of each decode. Before the launch.
        """
        if self._proposals is None:
            return (), ()
        absorbed, waiting = [], self._cache.replay.waiting(rows)
        for index in np.flatnonzero(waiting).tolist():
            sequence = decodes[index]
            assert sequence.allocation is not None
            token = int(sequence.token_ids[sequence.allocation.depth])
            absorbed.append(Absorption(index, sequence.allocation.lane, int(waiting[index]), token))
        proposed = {
            index: tokens
            for index, tokens in self._proposals.propose(decodes).items()
            if decodes[index].takes_drafts
        }
        for index in self._cache.replay.holders(rows):
            if index not in proposed:
                self._cache.replay.release(int(rows[index]))
        drafts = []
        for index, tokens in proposed.items():
            sequence = decodes[index]
            assert sequence.allocation is not None
            assert not sequence.in_flight
            most = min(len(tokens), self._proposals.most)
            room = self._cache.replay.room(sequence.allocation, sequence.prompt_len, most)
            if room:
                drafts.append(Draft(index, sequence.allocation.lane, tokens[:room].astype(np.int32)))
            else:
                self._cache.replay.release(sequence.row)
        return tuple(drafts), tuple(absorbed)
