"""llguidance's objects, made in one way: by whoever checks a grammar and by the engine that follows it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from mamba_server.grammar_limits import LIMITS

WORD = 32
"""Tokens of a word of a mask."""


def mask_words(vocab_size: int) -> int:
    """Words of one mask."""
    return -(-vocab_size // WORD)


def make_tokenizer(file: Path, vocab_size: int, ends: Sequence[int]) -> LLTokenizer:
    """Read the tokens of a model from its tokenizer.json. `ends`: those at which an answer may end; the last
    id stands for them where a model names none. Raises ValueError, OSError."""
    known = [each for each in ends if 0 <= each < vocab_size] or [vocab_size - 1]
    return LLTokenizer(file.read_text(encoding="utf-8"), n_vocab=vocab_size, eos_token=known)


def make_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """The matcher at the grammar's beginning; what is wrong with the grammar is the matcher's error."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)


def first_mask(matcher: LLMatcher, vocab_size: int) -> npt.NDArray[np.int32]:
    """Which tokens may come first: what a grammar costs shows in it. The next call finds it made."""
    words = np.zeros(mask_words(vocab_size), np.int32)
    matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
    return words
