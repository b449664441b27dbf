"""`OutputGrammar`: the tokens that may come next in an answer that has to follow a grammar.

One per sequence; the grammar is in llguidance's notation and comes from the API process. Used on the loop's
side of the engine alone: a mask is computed before the step is launched, a token is consumed when its step is
committed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from mamba_server.grammar_matcher import WORD, mask_words


class NextTokens(Protocol):
    """Restriction of the tokens that may come next in one answer."""

    @property
    def error(self) -> str:
        """Why no further token may come; "" = none."""

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""

    def fork(self, ends: frozenset[int] | None = None) -> "NextTokens":
        """Return the same state for another sequence, which may end at `ends`."""

    def consume(self, token: int) -> None:
        """Record that `token` was chosen."""

    def allowed(self, out: npt.NDArray[np.int32]) -> None:
        """Write the mask of the next token to `out`."""


class OutputGrammar:
    """State of one answer within its grammar.

    `error`: why no further token may come, "" = none. `ends`: tokens at which the answer would end without a
    grammar; `model_ends`: those that the matcher itself knows.
    """

    def __init__(
        self, matcher: LLMatcher, ends: frozenset[int] = frozenset(), model_ends: frozenset[int] = frozenset()
    ) -> None:
        self._matcher, self._ends, self._model_ends = matcher, ends, model_ends
        self._extra_bits = [_bit(token) for token in sorted(ends - model_ends)]
        self._ignored_bits = [_bit(token) for token in sorted(model_ends - ends)]
        self._ended = False

    def fork(self, ends: frozenset[int] | None = None) -> "OutputGrammar":
        """Return the same state for another sequence, which may end at `ends`; None = at the same tokens."""
        return OutputGrammar(
            self._matcher.deep_copy(), self._ends if ends is None else ends, self._model_ends
        )

    @property
    def error(self) -> str:
        return str(self._matcher.get_error())

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return self._ended or bool(self._matcher.is_stopped())

    def consume(self, token: int) -> None:
        """Record that `token` was chosen; a token that may not come sets `error`."""
        if token in self._ends and token not in self._model_ends and self._ends_here(token):
            self._ended = True
            return
        self._matcher.consume_token(token)

    def _ends_here(self, token: int) -> bool:
        """Return whether `token` is not part of the grammar and the answer is complete without it."""
        return bool(self._matcher.is_accepting()) and not self._matcher.validate_tokens([token])

    def allowed(self, out: npt.NDArray[np.int32]) -> None:
        """Write the mask of the next token to `out`, [words] and contiguous.

        Bit i of word w is token 32 w + i.
        """
        self._matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        if not (self._extra_bits or self._ignored_bits) or not self._matcher.is_accepting():
            return
        for word, bit in self._extra_bits:
            out[word] |= bit
        kept = out.copy()
        for word, bit in self._ignored_bits:
            kept[word] &= ~bit
        # An answer that can only end does end, even if the request ignores end tokens.
        if kept.any():
            out[:] = kept


def _bit(token: int) -> tuple[int, np.int32]:
    """Return word and value of a token in a mask."""
    return token // WORD, np.array([1 << (token % WORD)], np.uint32).view(np.int32)[0]


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """Masks of some rows of a step."""

    rows: npt.NDArray[np.int64]
    """[k] positions among the rows that sample, ascending."""
    words: npt.NDArray[np.int32]
    """[k, words] masks."""

    def of_rows(self, rows: slice) -> "TokenMasks | None":
        """Return the masks of a part of the rows, counted from its first row; None = there are none."""
        first, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        if first == stop:
            return None
        return TokenMasks(self.rows[first:stop] - rows.start, self.words[first:stop])


def token_masks(grammars: Iterable[NextTokens | None], vocab_size: int) -> TokenMasks | None:
    """Return masks for the rows of a step, of which grammar i belongs to row i; None = no row has one."""
    guided = {row: grammar for row, grammar in enumerate(grammars) if grammar is not None}
    if not guided:
        return None
    words = np.empty((len(guided), mask_words(vocab_size)), np.int32)
    for mask, grammar in zip(words, guided.values(), strict=True):
        grammar.allowed(mask)
    return TokenMasks(np.array(list(guided), np.int64), words)
