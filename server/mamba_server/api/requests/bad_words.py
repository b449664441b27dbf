"""Words that must not come in an answer, as sequences of tokens. Pure; the generation endpoints use it."""

from collections.abc import Iterable

from mamba_edge.errors import InvalidRequest
from mamba_text.tokenizer import Tokenizer


def bad_word_ids(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word as it stands and behind a blank, as at the beginning of a word.

    Raises InvalidRequest if a word is blank.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip():
            raise InvalidRequest("bad_words: a word must not be blank", param="bad_words")
        bare = word.lstrip()
        # Behind a letter, the word in the middle of another one; tokenizers differ in where blanks belong.
        for text in dict.fromkeys((word, bare, f" {bare}")):
            if ids := tuple(tokenizer.encoding(text).ids):
                sequences[ids] = None
    return tuple(sequences)
