"""A grammar that is complete after so many tokens, and takes whatever comes before."""

from __future__ import annotations

import numpy as np


class ScriptedGrammar:
    """Substitute for an `OutputGrammar`.

    `log`: tokens consumed by the grammar and its forks; `refuses`: the last token is an error.
    """

    def __init__(self, length: int, log: list[int] | None = None, *, refuses: bool = False) -> None:
        self.length, self.log, self.refuses = length, [] if log is None else log, refuses
        self.error = ""

    def fork(self, ends: frozenset[int] | None = None) -> ScriptedGrammar:
        return ScriptedGrammar(self.length, self.log, refuses=self.refuses)

    def look_ahead(self) -> ScriptedGrammar:
        return ScriptedGrammar(self.length, [], refuses=self.refuses)

    def forced(self) -> list[int]:
        return []

    def allowed(self, out: np.ndarray) -> None:
        out[:] = -1

    @property
    def complete(self) -> bool:
        return self.length <= 0

    def consume(self, token: int) -> None:
        self.length -= 1
        self.log.append(token)
        if self.refuses and self.length == 0:
            self.error = "it is no digit"
