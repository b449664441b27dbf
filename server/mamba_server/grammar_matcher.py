"""Construction of llguidance's objects, the same for the check of a grammar and for the engine."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

WORD = 32
"""Tokens per word of a mask."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=300_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_items_in_row=20_000,
    max_lexer_states=50_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
"""Bounds of one grammar, the same in the API process, which checks it, and in the engine, which follows it.

A schema of 64 KB may have some 1,900 optional properties, whose row has 8,000 items; the library's own limit
of 2,000 items shows only after the first token. Within these limits a mask takes 50 us on average and at most
some 130 ms, for grammars built to be expensive, whose first mask is computed outside the loop.
"""


def mask_words(vocab_size: int) -> int:
    """Return the number of words of one mask."""
    return -(-vocab_size // WORD)


def make_tokenizer(file: Path, vocab_size: int, ends: Sequence[int]) -> LLTokenizer:
    """Read the tokens of a model from its tokenizer.json.

    `ends`: tokens at which an answer may end; the last id stands for them where a model names none. Raises
    ValueError, OSError.
    """
    valid_ends = [end for end in ends if 0 <= end < vocab_size] or [vocab_size - 1]
    return LLTokenizer(file.read_text(encoding="utf-8"), n_vocab=vocab_size, eos_token=valid_ends)


def make_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Return a matcher at the beginning of the grammar, whose errors become errors of the matcher."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def first_mask(matcher: LLMatcher, vocab_size: int) -> npt.NDArray[np.int32]:
    """Return the mask of the first token, which is the most expensive one; the next call is fast."""
    words = np.zeros(mask_words(vocab_size), np.int32)
    matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    return words
