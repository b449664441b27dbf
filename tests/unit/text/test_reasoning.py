"""Reasoning is separated from the answer, however the text is cut into pieces."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_text.reasoning import (
    THINK,
    ParsedReasoning,
    ReasoningReader,
    ReasoningStart,
    reasoning_format_of,
)
from mamba_text.tool_calls import HERMES, ToolCallReader

OPEN, CLOSED, UNSAID = ReasoningStart.OPEN, ReasoningStart.CLOSED, ReasoningStart.UNSAID


def read(start: ReasoningStart, text: str, size: int) -> tuple[ParsedReasoning, int]:
    """Return the result of a text in pieces of `size` characters, each of which is a token."""
    reader = ReasoningReader(THINK, start)
    parts = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    got = [reader.feed(part, part, last=place == len(parts) - 1) for place, part in enumerate(parts)]
    whole = ParsedReasoning("".join(each.reasoning for each in got), "".join(each.answer for each in got))
    return whole, reader.tokens


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("start", "text", "reasoning", "answer", "tokens"),
    [
        (OPEN, "So\n\nit is.\n</think>\n\n42 \n", "So\n\nit is.", "42 \n", 19),
        (OPEN, "\n</think>42", "", "42", 9),
        (OPEN, "cut in the </thi", "cut in the </thi", "", 16),
        (OPEN, "a </think> b </think> c", "a", "b </think> c", 10),
        (OPEN, "", "", "", 0),
        (OPEN, "1 < 2 </b></think>", "1 < 2 </b>", "", 18),
        (CLOSED, " <think>x</think>", "", " <think>x</think>", 0),
        (UNSAID, "<think>\nHm.\n</think>\n42", "Hm.", "42", 20),
        (UNSAID, "\n <think>Hm.", "Hm.", "", 12),
        (UNSAID, " <thing> <think>x</think>", "", " <thing> <think>x</think>", 0),
        (UNSAID, " 42", "", " 42", 0),
        (UNSAID, "<thi", "", "<thi", 0),
        (UNSAID, " \n", "", " \n", 0),
    ],
)
def test_thoughts_and_answer_are_parted(
    start: ReasoningStart, text: str, reasoning: str, answer: str, tokens: int, size: int
) -> None:
    assert read(start, text, size) == (ParsedReasoning(reasoning, answer), tokens)


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    reader = ReasoningReader(THINK, OPEN)
    pieces = ["one", " two <", "b> ", "</thin", "g> ", "</think>", "\n", "a", " "]
    got = [reader.feed(piece, [piece], last=False) for piece in pieces]
    assert [each.reasoning for each in got] == ["one", " two", " <b>", "", " </thing>", "", "", "", ""]
    assert [each.answer for each in got] == ["", "", "", "", "", "", "", "a", " "]


def test_tokens_are_counted_up_to_the_marker_s_last_also_where_one_step_has_more() -> None:
    reader = ReasoningReader(THINK, OPEN)
    reader.feed("a b", ["a", " ", "b"], last=False)
    reader.feed("</think>x y", ["</th", "ink>", "x", " ", "y"], last=False)
    reader.feed("z", ["z"], last=True)
    assert reader.tokens == 5


@given(
    st.text(alphabet="ab \n<>/", max_size=30),
    st.text(alphabet="ab \n<>/", max_size=30),
    st.integers(1, 9),
    st.sampled_from([OPEN, UNSAID]),
)
def test_nothing_but_white_space_around_markers_is_lost(
    thought: str, answer: str, size: int, start: ReasoningStart
) -> None:
    begin = "" if start is OPEN else "<think>"
    got, _ = read(start, f"{begin}{thought}</think>{answer}", size)
    assert got == ParsedReasoning(thought.strip(), answer.lstrip())


@pytest.mark.parametrize(
    ("opening", "start"),
    [
        ("<|im_start|>assistant\n<think>\n", OPEN),
        ("<|im_start|>assistant\n<think></think>", CLOSED),
        ("<think>\n\n</think>\n\n", CLOSED),
        ("<think>old</think>x<think>", OPEN),
        ("<|im_start|>assistant\n", UNSAID),
        ("", UNSAID),
    ],
)
def test_the_prompt_tells_how_the_answer_begins(opening: str, start: ReasoningStart) -> None:
    assert ReasoningStart.of(THINK, opening) is start


def test_a_template_that_knows_the_end_marker_is_of_a_model_that_thinks() -> None:
    assert reasoning_format_of("{{ content.split('</think>')[-1] }}") is THINK
    assert reasoning_format_of("{{ messages }}") is None


PLAIN = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
OTHER = PLAIN.replace('"f"', '"g"')


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        (f"I look. {PLAIN}", "I look.", PLAIN),
        (f"I look.\n{PLAIN} and", "I look.", f"{PLAIN} and"),
        (f"as {OTHER}", f"as {OTHER}", ""),
        (f"as {PLAIN} or so</think>no", f"as {PLAIN} or so", "no"),
        ("I write <tool_call> first.</think>\n\nyes", "I write <tool_call> first.", "yes"),
        ("<tool_call>{}</tool_call> is none</think>yes", "<tool_call>{}</tool_call> is none", "yes"),
        ("It ends in <tool_call>{", "It ends in <tool_call>{", ""),
    ],
)
def test_a_call_of_an_offered_tool_ends_thoughts_that_have_no_end(
    text: str, reasoning: str, answer: str, size: int
) -> None:
    offered = partial(ToolCallReader, HERMES, None, {"f": {}}, offered_alone=True)
    reader = ReasoningReader(THINK, ReasoningStart.OPEN, offered)
    parts = [text[place : place + size] for place in range(0, len(text), size)]
    outputs = [reader.feed(part, [part], last=False) for part in parts] + [reader.feed("", [], last=True)]
    assert "".join(output.reasoning for output in outputs) == reasoning
    assert "".join(output.answer for output in outputs) == answer


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_begin_marker_that_the_model_repeats_is_no_thought(size: int) -> None:
    assert read(OPEN, "<think>\nHm <think>.</think>\nyes", size)[0] == ParsedReasoning("Hm <think>.", "yes")
