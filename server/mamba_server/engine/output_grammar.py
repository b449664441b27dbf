"""`OutputGrammar`: which tokens may come next in an answer that has to follow a grammar.

One of each sequence; the grammar is llguidance's, made by the API process. Used by the loop's side of the
engine alone: a mask is made before the step is launched, a token is consumed when its step is committed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

WORD = 32
"""Tokens of a word of a mask."""


def mask_words(vocab_size: int) -> int:
    """Words of one mask."""
    return -(-vocab_size // WORD)


class OutputGrammar:
    """The state of one answer. `error`: why no token may come any more, "" = all is well."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def fork(self) -> "OutputGrammar":
        """The same state for another sequence."""
        return OutputGrammar(self._matcher.deep_copy())

    @property
    def error(self) -> str:
        return str(self._matcher.get_error())

    @property
    def complete(self) -> bool:
        """Nothing can follow."""
        return bool(self._matcher.is_stopped())

    def consume(self, token: int) -> None:
        """The token was chosen. One that may not come is an `error` from now on."""
        self._matcher.consume_token(token)

    def allowed(self, out: npt.NDArray[np.int32]) -> None:
        """Write the mask of the next token to `out`, [words] and contiguous: bit i of word w is token
        32 w + i."""
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of some rows of a step."""

    rows: npt.NDArray[np.int64]
    """[k]: their places among the rows that sample, rising."""
    words: npt.NDArray[np.int32]
    """[k, words]"""

    def of_rows(self, rows: slice) -> "TokenMasks | None":
        """Those of a part of the rows, counted from its first; None = of none of them."""
        first, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        if first == stop:
            return None
        return TokenMasks(self.rows[first:stop] - rows.start, self.words[first:stop])


def token_masks(grammars: Iterable[OutputGrammar | None], vocab_size: int) -> TokenMasks | None:
    """Masks for the rows of a step, of which grammar i belongs to row i; None = no row has one."""
    guided = {row: grammar for row, grammar in enumerate(grammars) if grammar is not None}
    if not guided:
        return None
    words = np.empty((len(guided), mask_words(vocab_size)), np.int32)
    for mask, grammar in zip(words, guided.values(), strict=True):
        grammar.allowed(mask)
    return TokenMasks(np.array(list(guided), np.int64), words)
