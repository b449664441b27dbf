"""`HeadDrafts`: proposes what the checkpoint's own head foresees. Pure, but for device work given to it.

The scheduler asks for drafts before each launch, when the last token of each sequence is known. The head
writes its keys and values into pages that the drafts need anyway, so these are taken first.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mamba_server.cache import Ints, Tokens
from mamba_server.engine.scheduling.draft_rows import Rest
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.sequences.sequence import Sequence
from mamba_server.engine.speculation.draft_counts import DraftCounts

log = logging.getLogger(__name__)
KIND = "mtp"


@dataclass(frozen=True, slots=True)
class HeadRequest:
    """Asks the model's head for drafts for n sequences; arrays are [n], the longest drafts first."""

    rows: Ints
    """Persistent row of each sequence."""
    last_tokens: Ints
    """Last known token, which the model has not computed."""
    counts: Ints
    """Number of tokens to draft."""


class HeadDrafts:
    """Proposes drafts that the model's own head writes, for one engine.

    `most` is the largest number of drafts behind a token, and `rows` the largest number of sequences of a
    step with drafts. The boot sets `compute`, which returns the tokens of each sequence of a request, and
    `room`, which returns how many drafts a sequence may have, up to a number, and takes pages for them.
    """

    def __init__(self, most: int, rows: int) -> None:
        self.most, self._rows = most, rows
        self.compute: Callable[[HeadRequest], list[Tokens]] | None = None
        self.room: Callable[[Sequence, int], int] | None = None
        self._counts = DraftCounts(KIND)
        self.rest = Rest()

    def wanted(self) -> bool:
        """Return True: every step should have drafts."""
        return True

    def propose(self, decodes: list[Sequence]) -> dict[int, Tokens]:
        """Return the tokens that the head foresees for the first sequences that have room, by their index."""
        return self.foresee(decodes, dict.fromkeys(range(len(decodes)), self.most))

    def foresee(self, decodes: list[Sequence], most: dict[int, int]) -> dict[int, Tokens]:
        """Return the tokens that the head foresees for some decodes, by their index.

        `most` is the largest number of drafts of each decode, by its index.
        """
        assert self.room is not None
        counts: dict[int, int] = {}
        for index, limit in most.items():
            if len(counts) == self._rows:
                break
            if not decodes[index].in_flight and (count := self.room(decodes[index], limit)):
                counts[index] = count
        if not counts:
            return {}
        order = sorted(counts, key=lambda index: -counts[index])
        drafts = self._computed([decodes[index] for index in order], [counts[index] for index in order])
        return dict(zip(order, drafts, strict=True)) if drafts else {}

    def next_token(self, sequence: Sequence) -> int | None:
        """Return the one token that the head foresees for a sequence that is in no launched step, or None.

        It takes no room: the head's key and value of the last token are written again by the step.
        """
        drafts = self._computed([sequence], [1])
        return int(drafts[0][0]) if drafts else None

    def _computed(self, chosen: list[Sequence], counts: list[int]) -> list[Tokens]:
        assert self.compute is not None
        request = HeadRequest(
            rows=np.array([sequence.row for sequence in chosen], np.int32),
            last_tokens=np.array([_last_token(sequence) for sequence in chosen], np.int32),
            counts=np.array(counts, np.int32),
        )
        try:
            return self.compute(request)
        except Exception as error:
            # The step decodes without drafts; a device that is lost fails there, where the core sees it.
            log.warning("the head's drafts failed: %s: %s", type(error).__name__, error)
            return []

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Record that `accepted` of the `drafted` tokens of a draft were right."""
        self._counts.checked(KIND, drafted, accepted)

    def step_ended(self, schedule: Schedule, seconds: float) -> None:
        """Count a committed step: its drafts, and the accepted ones that it computed into states."""
        self._counts.step_ended(schedule)

    def counters(self) -> dict[str, float]:
        """Return counts since the start."""
        return self._counts.counters()


def _last_token(sequence: Sequence) -> int:
    assert sequence.allocation is not None
    return int(sequence.token_ids[sequence.allocation.depth])
