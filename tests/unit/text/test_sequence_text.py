"""One sequence's tokens to text, with stop strings and the number of tokens that count."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_text.sequence_text import SequenceText, TextVisibility
from mamba_text.tokenizer import Tokenizer
from tiny_model import SPECIAL, byte_level_tokenizer

TOKENIZER = Tokenizer(byte_level_tokenizer(), {"bos_token": "<s>"})
END = SPECIAL.index("</s>")


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encoding(text).ids


def sequence(*stops: str, min_tokens: int = 0) -> SequenceText:
    return SequenceText(TOKENIZER, ids_of("prompt "), TextVisibility(stops), min_tokens)


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


def test_a_stop_string_that_the_last_required_token_completes_does_not_end_the_sequence() -> None:
    required = len(ids_of("one."))
    assert run(sequence(".", min_tokens=required), ids_of("one. two. three"), 1)[0] == "one. two"
    assert run(sequence(".", min_tokens=required - 1), ids_of("one. two. three"), 1)[0] == "one"


def test_only_tokens_up_to_the_stop_string_are_used() -> None:
    ids = ids_of("one. two. three")
    text = sequence(".")
    step = text.feed(ids)
    assert step.stopped
    assert step.used == text.tokens == len(ids_of("one."))
    assert step.text == "one"


@given(
    st.text(alphabet="ab .\u00e9\u4e16\U0001f389", max_size=16),
    st.lists(st.text(alphabet="ab .\u00e9\u4e16\U0001f389", min_size=1, max_size=3), max_size=3),
    st.integers(0, 6),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_where_deltas_are_cut_changes_neither_text_nor_count(
    text: str, stops: list[str], min_tokens: int, cuts: list[int]
) -> None:
    ids = ids_of(text)
    expected = run(sequence(*stops, min_tokens=min_tokens), ids, 1)
    parts = sequence(*stops, min_tokens=min_tokens)
    places = [0, *sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    shown, kept = "", None
    for begin, end in itertools.pairwise(places):
        step = parts.feed(ids[begin:end])
        shown += step.text
        if step.stopped:
            kept = parts.tokens
            assert step.used == kept - begin
            break
    else:
        step = parts.feed([], last=True)
        shown += step.text
        kept = parts.tokens if step.stopped else None
    assert (shown, kept) == (expected if ids else ("", None))


def test_a_stop_string_across_the_prompt_and_the_output_does_not_stop() -> None:
    text = SequenceText(TOKENIZER, ids_of("say stop"), TextVisibility(("stop here",)))
    assert text.feed(ids_of(" here"), last=True).text == " here"


def test_a_stop_string_that_a_broken_character_interrupts_does_not_stop() -> None:
    text = sequence("ab")
    broken = ids_of("\u4e16")[0]
    step = text.feed([*ids_of("a"), broken, *ids_of("b")], last=True)
    assert (step.text, step.stopped) == ("a\ufffdb", False)


def test_a_stop_string_in_the_text_that_the_last_token_let_go_still_stops() -> None:
    whole, half = ids_of("\u4e16"), ids_of("\u754c")[:2]
    text = sequence("\u4e16")
    step = text.feed([*ids_of("x"), *whole, *half], last=True)
    assert (step.text, step.stopped) == ("x", True)


def test_a_stop_token_drops_an_unfinished_character_before_it() -> None:
    text = sequence()
    step = text.feed([*ids_of("ok"), *ids_of("\u4e16")[:2], END], stop_token=True, last=True)
    assert step.text == "ok"
    assert step.used == text.tokens


def test_at_the_end_held_text_comes_out_and_half_a_character_does_not() -> None:
    text = sequence("xyz")
    assert text.feed([*ids_of("ax"), *ids_of("\u4e16")[:1]]).text == "a"
    assert text.feed([], last=True).text == "x"


def test_what_ended_it_is_shown_when_that_is_asked_for() -> None:
    shown = TextVisibility(("END",), stop=True)
    text = SequenceText(TOKENIZER, [], shown)
    step = text.feed(ids_of("one END two"))
    assert (step.text, step.stopped) == ("one END", True)
    token = ids_of("!")
    assert SequenceText(TOKENIZER, [], shown).feed(token, stop_token=True, last=True).text == "!"
    assert SequenceText(TOKENIZER, [], TextVisibility()).feed(token, stop_token=True, last=True).text == ""


@pytest.mark.parametrize(("special", "text"), [(False, "hello"), (True, "hello<|im_end|>")])
def test_special_tokens_are_text_when_that_is_asked_for(special: bool, text: str) -> None:
    ids = [*ids_of("hello"), *ids_of("<|im_end|>")]
    step = SequenceText(TOKENIZER, [], TextVisibility(special_tokens=special)).feed(ids, last=True)
    assert step.text == text
