"""`OutputGrammar`: the tokens that may come next in an answer that has to follow a grammar.

One per sequence; the grammar is in llguidance's notation and comes from the API process. Used on the loop's
side of the engine alone: a mask is computed before the step is launched, a token is consumed when its step is
committed. The tokens of a draft are consumed by a look-ahead, of which the sequence's own grammar knows
nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from mamba_server.grammar_matcher import WORD, mask_words


class NextTokens(Protocol):
    """Says which tokens may come next in one answer, and follows the tokens that are chosen."""

    @property
    def error(self) -> str:
        """Why no further token may come; "" = none."""

    @property
    def complete(self) -> bool:
        """Whether the answer is complete, so that no further token may come."""

    def fork(self, ends: frozenset[int] | None = None) -> "NextTokens":
        """Return the same state for another sequence, which may end at `ends`."""

    def look_ahead(self) -> "NextTokens":
        """Return a copy, which drafted tokens may move on while this object stays where it is."""

    def forced(self) -> list[int]:
        """Return the tokens that have to come next, as far as the rules know them; there may be none."""

    def consume(self, token: int) -> None:
        """Record that `token` was chosen."""

    def allowed(self, out: npt.NDArray[np.int32]) -> None:
        """Write the mask of the tokens that may come next to `out`, [words] and contiguous."""


class OutputGrammar:
    """State of one answer within its grammar.

    `error` says why no further token may come; "" = one may. `ends` are the tokens at which the answer would
    end without a grammar; `model_ends` are the ones that the matcher itself knows.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        ends: frozenset[int] = frozenset(),
        model_ends: frozenset[int] = frozenset(),
        *,
        ended: bool = False,
    ) -> None:
        self._matcher, self._ends, self._model_ends = matcher, ends, model_ends
        self._extra_bits = [_bit(token) for token in sorted(ends - model_ends)]
        self._ignored_bits = [_bit(token) for token in sorted(model_ends - ends)]
        self._ended = ended

    def fork(self, ends: frozenset[int] | None = None) -> "OutputGrammar":
        """Return the same state for another sequence, which may end at `ends`; None = at the same tokens."""
        return OutputGrammar(
            self._matcher.deep_copy(), self._ends if ends is None else ends, self._model_ends
        )

    def look_ahead(self) -> "OutputGrammar":
        """Return a copy, which drafted tokens may move on while this object stays where it is."""
        return OutputGrammar(self._matcher.deep_copy(), self._ends, self._model_ends, ended=self._ended)

    def forced(self) -> list[int]:
        """Return the tokens of the text that has to come next, as the tokenizer writes it.

        The model may write the same text in other tokens.
        """
        return [] if self._ended else list(self._matcher.compute_ff_tokens())

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
        """Write the mask of the tokens that may come next to `out`, [words] and contiguous.

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


def permits(mask: npt.NDArray[np.int32], token: int) -> bool:
    """Return whether `token` may come by a mask."""
    word, bit = _bit(token)
    return 0 <= word < len(mask) and bool(mask[word] & bit)


def masks_ahead(grammar: NextTokens, tokens: Sequence[int], words: int) -> npt.NDArray[np.int32]:
    """Return the masks of the next token, and of the tokens that may follow each of `tokens`.

    The masks end at the first of `tokens` that may not come, or behind which nothing can follow; so there is
    one mask more than tokens that passed. `words`: length of a mask.
    """
    masks = np.empty((len(tokens) + 1, words), np.int32)
    ahead, count = grammar.look_ahead(), 1
    ahead.allowed(masks[0])
    for token in tokens:
        if _failed(ahead) or not permits(masks[count - 1], token):
            break
        ahead.consume(token)
        if _failed(ahead) or ahead.complete:
            break
        ahead.allowed(masks[count])
        if _failed(ahead):
            break
        count += 1
    return masks[:count]


def _failed(grammar: NextTokens) -> bool:
    """Return whether the grammar has failed; any call may have changed that."""
    return bool(grammar.error)


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """The tokens that may come next in some rows of a step, as masks for the sampler."""

    rows: npt.NDArray[np.int64]
    """[k] positions among the rows that sample, ascending."""
    words: npt.NDArray[np.int32]
    """Masks of the allowed tokens, [k, words]."""

    def of_rows(self, rows: slice) -> "TokenMasks | None":
        """Return the masks of a part of the rows, counted from its first row; None = there are none."""
        first, stop = np.searchsorted(self.rows, (rows.start, rows.stop))
        if first == stop:
            return None
        return TokenMasks(self.rows[first:stop] - rows.start, self.words[first:stop])


def token_masks(
    rules: Iterable[NextTokens | npt.NDArray[np.int32] | None], vocab_size: int
) -> TokenMasks | None:
    """Return masks for the rows of a step; rules or a mask i belong to row i; None = no row has any."""
    guided = {row: each for row, each in enumerate(rules) if each is not None}
    if not guided:
        return None
    words = np.empty((len(guided), mask_words(vocab_size)), np.int32)
    for mask, each in zip(words, guided.values(), strict=True):
        if isinstance(each, np.ndarray):
            mask[:] = each
        else:
            each.allowed(mask)
    return TokenMasks(np.array(list(guided), np.int64), words)
