"""One sequence's tokens to text, with stop strings and the number of tokens that count."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_server.text.sequence_text import SequenceText
from mamba_server.text.tokenizer import Tokenizer
from tiny_model import SPECIAL, byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
END = SPECIAL.index("</s>")


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encoding(text).ids


def sequence(*stops: str, min_tokens: int = 0) -> SequenceText:
    return SequenceText(TOKENIZER, ids_of("prompt "), stops, min_tokens)


def run(text: SequenceText, ids: list[int], size: int) -> tuple[str, int | None]:
    """Feed in deltas of `size` tokens; the text, and how many tokens counted if a stop string ended it."""
    shown = ""
    for begin in range(0, len(ids), size):
        part = ids[begin : begin + size]
        step = text.feed(part, last=begin + size >= len(ids))
        shown += step.text
        if step.stopped:
            return shown, text.tokens
        assert step.used == len(part)
    return shown, None


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_text_is_the_same_however_the_tokens_arrive(size: int) -> None:
    text = "hello world, 世界 🎉 to be or not to be"
    assert run(sequence(), ids_of(text), size) == (text, None)


@settings(deadline=None)
@given(
    st.text(alphabet="ab é世🎉", max_size=20),
    st.text(alphabet="ab é世🎉", min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_a_stop_string_cuts_the_text_and_the_tokens_at_its_own_end(text: str, stop: str, size: int) -> None:
    ids = ids_of(text)
    shown, kept = run(sequence(stop), ids, size)
    assert shown == text.partition(stop)[0]
    if stop in text:
        assert kept is not None
        assert stop in TOKENIZER.decode(ids[:kept])
        assert stop not in TOKENIZER.decode(ids[: kept - 1])
    else:
        assert kept is None


def test_a_stop_token_is_counted_and_not_shown() -> None:
    text = sequence()
    ids = ids_of("hello")
    step = text.feed([*ids, END], stop_token=True, last=True)
    assert (step.text, step.used, text.tokens) == ("hello", len(ids) + 1, len(ids) + 1)


def test_a_stop_token_that_is_ordinary_text_is_not_shown_either() -> None:
    step = sequence().feed(ids_of("hello!"), stop_token=True, last=True)
    assert step.text == "hello"


def test_held_text_comes_out_at_the_end() -> None:
    text = sequence("hello there")
    assert text.feed(ids_of("hello")).text == ""
    assert text.feed([], last=True).text == "hello"


def test_before_min_tokens_a_stop_string_does_not_end_the_sequence() -> None:
    ids = ids_of("one. two. three. ")
    shown, kept = run(sequence(".", min_tokens=len(ids_of("one. two"))), ids, 1)
    assert shown == "one. two"
    assert kept == len(ids_of("one. two."))


def test_only_tokens_up_to_the_stop_string_are_used() -> None:
    ids = ids_of("one. two. three")
    text = sequence(".")
    step = text.feed(ids)
    assert step.stopped
    assert step.used == text.tokens == len(ids_of("one."))
    assert step.text == "one"
