"""`TokenRules`: the tokens that may come next in one answer, where its request restricts them in some ways.

The rules join a grammar, a budget of thoughts, allowed tokens, and sequences of tokens that must not come.
Each sequence with such restrictions has its own `TokenRules` in place of an `OutputGrammar`. Only the loop's
side of the engine uses them.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mamba_server.engine.sequences.output_grammar import NextTokens, OutputGrammar
from mamba_server.engine.sequences.thought_limit import Decode, ThoughtLimit
from mamba_server.grammar_matcher import WORD, mask_words
from mamba_server.wire import SamplingParams

Mask = npt.NDArray[np.int32]
NOTHING_LEFT = "no token may follow: the form, allowed_token_ids and bad_words together exclude all of them"


def rules_for(
    params: SamplingParams,
    vocab_size: int,
    grammar: OutputGrammar | None = None,
    decode: Decode | None = None,
) -> NextTokens | None:
    """Return the restrictions of the tokens of a request; None = there are none.

    `decode` is only called with a budget of thoughts.
    """
    if not needs_rules(params):
        return grammar
    thoughts = None
    if params.thought_budget is not None:
        assert decode is not None
        thoughts = ThoughtLimit(params.thought_budget, decode)
    allowed = None
    if params.allowed_token_ids:
        allowed = mask_of(params.allowed_token_ids, vocab_size)
    return TokenRules(grammar, thoughts, allowed, params.bad_words)


def needs_rules(params: SamplingParams) -> bool:
    """Return whether a request has restrictions beside a grammar."""
    return bool(params.thought_budget is not None or params.allowed_token_ids or params.bad_words)


def mask_of(tokens: Sequence[int], vocab_size: int) -> Mask:
    """Return the mask that allows these tokens alone."""
    flags = np.zeros(mask_words(vocab_size) * WORD, np.bool_)
    flags[[token for token in tokens if 0 <= token < vocab_size]] = True
    return np.packbits(flags, bitorder="little").view(np.int32)


class TokenRules:
    """Joins all restrictions of one request on the tokens of its answer, and follows the chosen tokens."""

    def __init__(
        self,
        grammar: OutputGrammar | None,
        thoughts: ThoughtLimit | None,
        allowed: Mask | None,
        bad_words: tuple[tuple[int, ...], ...],
    ) -> None:
        self._grammar, self._thoughts, self._allowed, self._bad = grammar, thoughts, allowed, bad_words
        self._longest = max(map(len, bad_words), default=1) - 1
        self._recent: tuple[int, ...] = ()
        """Last tokens of the answer, as many as the longest bad word has before its last one."""
        self._error = ""

    def fork(self, ends: frozenset[int] | None = None) -> "TokenRules":
        """Return the rules at their beginning for another sequence, which may end at `ends`."""
        return TokenRules(
            None if self._grammar is None else self._grammar.fork(ends),
            None if self._thoughts is None else self._thoughts.fork(),
            self._allowed,
            self._bad,
        )

    def look_ahead(self) -> "TokenRules":
        """Return a copy, which drafted tokens may move on while this object stays where it is."""
        copy = TokenRules(
            None if self._grammar is None else self._grammar.look_ahead(),
            None if self._thoughts is None else self._thoughts.look_ahead(),
            self._allowed,
            self._bad,
        )
        copy._recent, copy._error = self._recent, self._error
        return copy

    def forced(self) -> list[int]:
        """Return tokens that have to come next: the rest of an end marker, or tokens of the form."""
        if self._thoughts is not None and self._thoughts.forced is not None:
            return self._thoughts.rest
        return [] if self._grammar is None else self._grammar.forced()

    @property
    def error(self) -> str:
        """Why no further token may come; "" = none."""
        return self._error or ("" if self._grammar is None else self._grammar.error)

    @property
    def complete(self) -> bool:
        """Whether nothing can follow."""
        return self._grammar is not None and self._grammar.complete

    def consume(self, token: int) -> None:
        """Record that `token` was chosen."""
        if self._error:
            return
        if self._grammar is not None:
            self._grammar.consume(token)
        if self._thoughts is not None:
            self._thoughts.consume(token)
        if self._longest:
            self._recent = (*self._recent, token)[-self._longest :]

    def allowed(self, out: Mask) -> None:
        """Write the mask of the tokens that may come next to `out`, [words] and contiguous."""
        if self._grammar is None:
            out[:] = -1
        else:
            self._grammar.allowed(out)
        forced = None if self._thoughts is None else self._thoughts.forced
        if forced is not None:
            # A word that is not to come does not keep thoughts from ending.
            bit = _bit(forced)
            is_allowed = bool(out[forced // WORD] & bit)
            out[:] = 0
            if is_allowed:
                out[forced // WORD] = bit
        else:
            if self._allowed is not None:
                out &= self._allowed
            for *before, last in self._bad:
                if not before or self._recent[-len(before) :] == tuple(before):
                    out[last // WORD] &= ~_bit(last)
        if not out.any():
            self._error = NOTHING_LEFT
            out[:] = -1


def _bit(token: int) -> np.int32:
    bit: np.int32 = np.array([1 << (token % WORD)], np.uint32).view(np.int32)[0]
    return bit
