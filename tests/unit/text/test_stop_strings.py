"""Stop strings in pieces against the same search over the whole text."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_text.stop_strings import StopMatch, StopMatcher

LETTERS = st.text(alphabet="abc", max_size=24)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4).map(tuple)


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Return the stop string that ends first; of those with the same end the one that begins first."""
    for end in range(1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            stop = max(endings, key=len)
            return text[: end - len(stop)], stop
    return text, None


def feed_all(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    """Feed all pieces in order; return those given out and the matched stop string."""
    matcher = StopMatcher(stops)
    given_out = []
    for piece in pieces:
        matched = matcher.feed(piece)
        given_out.append(matched.text)
        if matched.stop is not None:
            return given_out, matched.stop
    given_out.append(matcher.flush())
    return given_out, None


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in pairwise(bounds)]


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_pieces_give_what_the_whole_text_gives(text: str, stops: tuple[str, ...], places: list[int]) -> None:
    given_out, stop = feed_all(cut(text, places), stops)
    assert ("".join(given_out), stop) == oracle(text, stops)


@given(LETTERS, STOPS)
def test_one_character_at_a_time_gives_what_the_whole_text_gives(text: str, stops: tuple[str, ...]) -> None:
    given_out, stop = feed_all(list(text), stops)
    assert ("".join(given_out), stop) == oracle(text, stops)


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_no_part_of_a_stop_string_is_ever_given_out(
    text: str, stops: tuple[str, ...], places: list[int]
) -> None:
    expected, _ = oracle(text, stops)
    given_out, _ = feed_all(cut(text, places), stops)
    so_far = ""
    for piece in given_out:
        so_far += piece
        assert expected.startswith(so_far)


@given(LETTERS, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_no_more_is_held_back_than_could_begin_a_stop_string(
    text: str, stops: tuple[str, ...], places: list[int]
) -> None:
    matcher = StopMatcher(stops)
    fed = given_out = ""
    for piece in cut(text, places):
        matched = matcher.feed(piece)
        if matched.stop is not None:
            return
        fed += piece
        given_out += matched.text
        held = fed[len(given_out) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_every_piece_passes_at_once() -> None:
    assert StopMatcher(()).feed("abc") == StopMatch("abc")


def test_a_stop_string_over_three_pieces_is_found_and_left_out() -> None:
    assert feed_all(["one EN", "D", "OF two"], ("ENDOF",)) == (["one ", "", ""], "ENDOF")


def test_text_held_for_a_stop_string_that_does_not_come_is_given_out_later() -> None:
    matcher = StopMatcher(("\n\nHuman:",))
    assert matcher.feed("Hi\n").text == "Hi"
    assert matcher.feed("\nHum").text == ""
    assert matcher.feed("ble").text == "\n\nHumble"


def test_what_is_held_at_the_end_is_flushed_once() -> None:
    matcher = StopMatcher(("END",))
    assert matcher.feed("the EN").text == "the "
    assert matcher.flush() == "EN"
    assert matcher.flush() == ""


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("bc", "abcd"), ("a", "bc")),
        (("c", "abc"), ("", "abc")),
        (("abc", "c"), ("", "abc")),
        (("d", "bc"), ("a", "bc")),
    ],
)
def test_the_stop_string_that_ends_first_wins_and_of_equals_the_longer(
    stops: tuple[str, ...], expected: tuple[str, str]
) -> None:
    given_out, stop = feed_all(["abcd"], stops)
    assert ("".join(given_out), stop) == expected


def test_multi_byte_stop_strings_are_ordinary_text() -> None:
    assert feed_all(["世", "界終", "わり"], ("終わ",)) == (["世", "界", ""], "終わ")
