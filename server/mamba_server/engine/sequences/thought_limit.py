"""`ThoughtLimit`: ends the thoughts of one answer after a number of tokens, by forcing their end marker.

The engine decides which token comes next; the API process, which writes the texts of the answer, finds the
same marker as where the model writes it by itself. Markers are compared as bytes, because a model may spell a
marker in other tokens than a tokenizer does.
"""

from collections.abc import Callable
from copy import copy
from enum import Enum, auto

from mamba_server.wire import ThoughtBudget

Decode = Callable[[list[int]], bytes]
"""Returns the bytes of tokens, special ones included."""
MOST_DELAY = 3
"""Most tokens beyond the budget that are waited for while a character is incomplete."""


class _Place(Enum):
    BEFORE = auto()
    """Before the first text, which shows whether the model thinks."""
    INSIDE = auto()
    FORCED = auto()
    """The end marker is being written."""
    OVER = auto()


class ThoughtLimit:
    """Ends the thoughts of one answer when their budget is used up, by forcing the end marker.

    It follows the tokens of the answer one by one.
    """

    def __init__(self, budget: ThoughtBudget, decode: Decode) -> None:
        """Begin at the first token of the answer. `decode` returns the bytes of tokens."""
        self._budget, self._decode = budget, decode
        self._begin = budget.begin.encode()
        self._ends = [end.encode() for end in budget.ends]
        self._place = _Place.BEFORE if self._begin else _Place.INSIDE
        self._tail = b""
        """Last bytes, in which a marker may begin."""
        self._tokens = 0
        """Tokens of the thoughts so far; of the end marker while it is written."""
        self._check_budget()

    def fork(self) -> "ThoughtLimit":
        """Return a limit for another answer to the same request."""
        return ThoughtLimit(self._budget, self._decode)

    def look_ahead(self) -> "ThoughtLimit":
        """Return a copy, which drafted tokens may move on while this object stays where it is."""
        return copy(self)

    @property
    def forced(self) -> int | None:
        """The token that has to come next; None = any may come."""
        return self._budget.closing[self._tokens] if self._place is _Place.FORCED else None

    @property
    def rest(self) -> list[int]:
        """The tokens of the end marker that are still to be written; empty while none is."""
        return list(self._budget.closing[self._tokens :]) if self._place is _Place.FORCED else []

    def consume(self, token: int) -> None:
        """Record that `token` was chosen."""
        if self._place is _Place.OVER:
            return
        if self._place is _Place.FORCED:
            self._tokens += 1
            if self._tokens == len(self._budget.closing):
                self._place = _Place.OVER
            return
        self._tail += self._decode([token])
        if self._place is _Place.BEFORE:
            self._look_for_begin()
        if self._place is _Place.INSIDE:
            self._tokens += 1
            if any(end in self._tail for end in self._ends):
                self._place = _Place.OVER
                return
            self._tail = self._tail[-max(4, *map(len, self._ends)) :]
            self._check_budget()

    def _look_for_begin(self) -> None:
        written = self._tail.lstrip()
        if written.startswith(self._begin):
            self._place, self._tail = _Place.INSIDE, written[len(self._begin) :]
        elif not self._begin.startswith(written):
            self._place = _Place.OVER

    def _check_budget(self) -> None:
        if self._place is not _Place.INSIDE or self._tokens < self._budget.tokens:
            return
        if self._tokens < self._budget.tokens + MOST_DELAY and _is_cut(self._tail):
            return
        self._place, self._tokens = _Place.FORCED, 0


def _is_cut(text: bytes) -> bool:
    """Return whether the text ends within a character."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return length > back
    return False
