"""Texts in pieces: the very ids of the whole, and what was encoded once is not encoded again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from mamba_text.segment_cache import SegmentCache
from mamba_text.tokenizer import Tokenizer
from tiny_model import byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
SPECIAL = [token.content for token in TOKENIZER.rust.get_added_tokens_decoder().values()]
CACHE = SegmentCache(TOKENIZER, most_chars=2000)
TEXTS = st.lists(
    st.sampled_from([*SPECIAL, *(s[:-1] for s in SPECIAL), " ", "\n", "word ", "x" * 70])
    | st.text(max_size=9),
    max_size=12,
).map("".join)


@settings(max_examples=150)
@given(TEXTS)
def test_the_ids_are_those_of_the_whole_text(text: str) -> None:
    assert CACHE.encode(text) == TOKENIZER.encoding(text).ids
    assert CACHE.chars <= 2000


def turns(count: int) -> str:
    return "".join(f"<|im_start|>user\nturn {n} {'word ' * 40}<|im_end|>\n" for n in range(count))


def test_of_a_conversation_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, encoded = SegmentCache(TOKENIZER), list[str]()
    encoding = TOKENIZER.encoding
    cache.encode(turns(20))

    def counting(text: str) -> Any:
        encoded.append(text)
        return encoding(text)

    monkeypatch.setattr(TOKENIZER, "encoding", counting)
    assert cache.encode(turns(21)) == encoding(turns(21)).ids
    assert [text for text in encoded if len(text) > 20] == [
        turns(21).removeprefix(turns(20))[: -len("<|im_end|>\n")]
    ]


def test_memory_is_bounded_by_characters() -> None:
    cache = SegmentCache(TOKENIZER, most_chars=1000)
    for _ in range(3):
        cache.encode(turns(50))
        assert 0 < cache.chars <= 1000


def test_a_tokenizer_whose_special_tokens_look_around_is_not_cut() -> None:
    rust = byte_level_tokenizer()
    rust.add_special_tokens([AddedToken("<strip>", lstrip=True, rstrip=True)])
    tokenizer = Tokenizer(rust, {})
    text = "a  <strip>  b <|im_start|> " * 9
    cache = SegmentCache(tokenizer)
    assert cache.encode(text) == tokenizer.encoding(text).ids
    assert cache.chars == 0
