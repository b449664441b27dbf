"""Quick token ids of the gateway: those of the tokenizer itself, whatever the quicker implementation does."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_text.quick_encoder import COMPARED_CHARS, COMPARED_EACH, QuickEncoder, quick_token_ids
from mamba_text.tokenizer import Tokenizer
from tiny_model import byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
SPECIAL = [token.content for token in TOKENIZER.rust.get_added_tokens_decoder().values()]
TEXTS = st.lists(st.sampled_from([*SPECIAL, "\n\n", "  ", "don't "]) | st.text(max_size=9), max_size=12)


@cache
def shared_encoder() -> QuickEncoder:
    """Return one encoder for all examples. It starts a thread, which a fork has not."""
    return QuickEncoder(TOKENIZER)


@settings(max_examples=150)
@given(TEXTS.map("".join))
def test_the_ids_of_any_text_are_those_of_the_tokenizer(text: str) -> None:
    assert shared_encoder().is_quick
    assert shared_encoder().token_ids(text) == TOKENIZER.encoding(text).ids


def test_an_implementation_that_begins_to_differ_is_found_out_and_left() -> None:
    asked: list[str] = []

    def wrong_from_the_tenth(text: str) -> list[int]:
        asked.append(text)
        return TOKENIZER.encoding(text).ids + [1] * (len(asked) > 9)

    encoder = QuickEncoder(TOKENIZER, wrong_from_the_tenth)
    texts = [f"text {number}" for number in range(2 * COMPARED_EACH)]
    wrong = [text for text in texts if encoder.token_ids(text) != TOKENIZER.encoding(text).ids]
    assert len(wrong) < COMPARED_EACH
    assert not encoder.is_quick
    assert len(asked) <= COMPARED_EACH + 1


def test_long_texts_are_never_encoded_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = QuickEncoder(TOKENIZER)
    monkeypatch.setattr(TOKENIZER, "token_ids", None)
    for _ in range(2 * COMPARED_EACH):
        assert encoder.token_ids("x" * (COMPARED_CHARS + 1))


def test_what_the_quick_one_refuses_the_tokenizer_encodes() -> None:
    def refusing(text: str) -> list[int]:
        raise ValueError(text)

    encoder = QuickEncoder(TOKENIZER, refusing)
    assert encoder.token_ids("some text") == TOKENIZER.encoding("some text").ids
    assert not encoder.is_quick


def test_a_description_that_is_read_as_another_tokenizer_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    description = json.loads(TOKENIZER.rust.to_str())
    vocabulary = description["model"]["vocab"]
    vocabulary["e"], vocabulary["o"] = vocabulary["o"], vocabulary["e"]
    another = Tokenizer(byte_level_tokenizer(), {})
    monkeypatch.setattr(another, "rust", SimpleNamespace(to_str=lambda: json.dumps(description)))
    monkeypatch.setattr(another.rust, "get_added_tokens_decoder", dict, raising=False)
    monkeypatch.setattr(another, "encoding", TOKENIZER.encoding)
    assert quick_token_ids(another) is None
    monkeypatch.setattr(another.rust, "to_str", TOKENIZER.rust.to_str)
    assert quick_token_ids(another) is not None
