"""Calls that are streamed while they are written: their parts are the whole, however the text is cut."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_text.tool_calls import GRANITE, HERMES, NEMOTRON, TAGGED, ToolCall, ToolCallFormat, ToolCallReader

PARAMETERS = {
    "add": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"}, "text": {"type": "string"}, "other": {"type": "string"},
            "list": {"type": "array"},
        },
    },
    "no_parameters": {},
}  # fmt: skip
FORMS = [HERMES, NEMOTRON, GRANITE, TAGGED]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:stop] for start, stop in itertools.pairwise(places)]


def read(
    form: ToolCallFormat, pieces: list[str], *, streams: bool = True, **options: Any
) -> tuple[str, list[ToolCall], list[ToolCall], int]:
    """Return text, whole calls, calls joined of their parts, and how many parts came before the end."""
    reader = ToolCallReader(form, parameters=PARAMETERS, streams=streams, **options)
    text, calls, parts, early = "", [], [], 0
    for number, piece in enumerate(pieces or [""]):
        output = reader.feed(piece, last=number >= len(pieces) - 1)
        text += output.text
        calls += output.calls
        parts += output.parts
        early += len(output.parts) if number < len(pieces) - 1 else 0
    joined: list[list[str]] = []
    for part in parts:
        if part.name:
            joined.append([part.name, ""])
        joined[-1][1] += part.arguments
    return text, calls, [ToolCall(*each) for each in joined], early


def tagged(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f"<parameter={key}>\n{value if isinstance(value, str) else json.dumps(value)}\n</parameter>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def written(form: ToolCallFormat, calls: list[tuple[str, dict[str, Any]]], indent: int | None) -> str:
    if form.tagged:
        return "\n".join(tagged(*call) for call in calls)
    objects = [json.dumps({"name": name, "arguments": each}, indent=indent) for name, each in calls]
    if form.listed:
        return f"{form.begin}[{', '.join(objects)}]{form.end}"
    return "\n".join(f"{form.begin}\n{each}\n{form.end}" for each in objects)


texts = st.lists(
    st.sampled_from(
        [
            *'ab<>/{}[]",:\\\n é🎉',
            "</parameter>",
            "<parameter=a>",
            "\n<parameter=a>\n",
            "</tool_call>",
            "\n</",
        ]
    )
).map("".join)
arguments = st.fixed_dictionaries(
    {},
    optional={"a": st.integers(), "text": texts, "other": texts, "list": st.lists(st.integers(), max_size=2)},
)
calls_ = st.lists(st.tuples(st.just("add"), arguments), min_size=1, max_size=3)
cuts = st.lists(st.integers(0, 10_000), max_size=40)


@pytest.mark.parametrize("form", FORMS, ids=["hermes", "nemotron", "granite", "tagged"])
@given(calls=calls_, cuts=cuts, indent=st.sampled_from([None, 1]))
@settings(max_examples=60)
def test_parts_are_the_whole_calls(
    form: ToolCallFormat, calls: list[tuple[str, dict[str, Any]]], cuts: list[int], indent: int | None
) -> None:
    text = written(form, calls, indent)
    _, whole, _, _ = read(form, [text], streams=False)
    _, streamed, joined, _ = read(form, pieces_of(text, cuts))
    assert joined == streamed
    if not form.tagged or all("<" not in str(each) for _, each in calls):
        assert streamed == whole
        assert [json.loads(call.arguments) for call in joined] == [each for _, each in calls]


@pytest.mark.parametrize("form", FORMS, ids=["hermes", "nemotron", "granite", "tagged"])
def test_a_long_text_arrives_while_it_is_written(form: ToolCallFormat) -> None:
    text = written(form, [("add", {"text": "word " * 100})], None)
    _, calls, joined, early = read(form, [text[at : at + 5] for at in range(0, len(text), 5)])
    assert early >= 95
    assert joined == calls


def test_a_text_with_tags_in_it_is_not_torn() -> None:
    value = "a </parameter> b <parameter=x> c\n\n"
    text = tagged("add", {"text": value, "a": 1})
    for step in (1, 2, 3, 7, 50):
        _, calls, joined, _ = read(TAGGED, [text[at : at + step] for at in range(0, len(text), step)])
        assert [json.loads(call.arguments) for call in calls] == [{"text": value, "a": 1}]
        assert joined == calls


def test_a_parameter_without_an_end_ends_where_the_next_one_begins() -> None:
    inner = "<parameter=text>\nx\n<parameter=a>\n1\n</parameter>\n"
    text = f"<tool_call><function=add>\n{inner}</function></tool_call>"
    for step in (1, 4, 100):
        _, calls, joined, _ = read(TAGGED, [text[at : at + step] for at in range(0, len(text), step)])
        assert [json.loads(call.arguments) for call in calls] == [{"text": "x", "a": 1}]
        assert joined == calls


@pytest.mark.parametrize(
    "escape", ["\\ud83c\\udf89", "\\ud83c", "\\udf89", "\\ud83cx", "\\ud83c\\n", "\\u00e9"]
)
def test_half_a_pair_is_replaced_in_parts_too(escape: str) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"text": "' + escape + '"}}</tool_call>'
    for step in (1, 3, 100):
        _, _, joined, _ = read(HERMES, [text[at : at + step] for at in range(0, len(text), step)])
        (call,) = joined
        json.loads(call.arguments)["text"].encode()


@pytest.mark.parametrize("form", [HERMES, NEMOTRON])
@pytest.mark.parametrize("key", ["arguments", "parameters"])
def test_an_answer_in_json_may_be_a_call_without_markers(form: ToolCallFormat, key: str) -> None:
    text = '\n{"name": "add", "' + key + '": {"a": 1, "text": "}"}}'
    for step in (1, 6, 100):
        said, calls, joined, _ = read(form, [text[at : at + step] for at in range(0, len(text), step)])
        assert said.strip() == ""
        assert calls == joined == [ToolCall("add", '{"a": 1, "text": "}"}')]


@pytest.mark.parametrize(
    "text",
    ['{"name": "other", "arguments": {"a": 1}}', '{"name": "add"}', '{"a": 1}', "{", '{"name": "ad',
     'See: {"name": "add", "arguments": {"a": 1}}'],
)  # fmt: skip
def test_other_json_stays_text(text: str) -> None:
    for step in (1, 5, 100):
        said, calls, joined, _ = read(HERMES, [text[at : at + step] for at in range(0, len(text), step)])
        assert (said, calls, joined) == (text, [], [])


def test_a_call_of_no_offered_function_is_not_begun() -> None:
    text = '<tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>'
    said, calls, joined, early = read(HERMES, list(text), offered_alone=True)
    assert (said, calls, joined, early) == (text, [], [], 0)


def test_a_call_that_breaks_off_has_what_was_written() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, "te'
    said, calls, joined, _ = read(HERMES, list(text))
    assert (said, joined) == ("", calls)
    assert joined == [ToolCall("add", '{"a": 1, "te')]


def test_only_as_many_calls_as_allowed_are_begun() -> None:
    text = written(NEMOTRON, [("add", {"a": 1}), ("add", {"a": 2})], None)
    _, calls, joined, _ = read(NEMOTRON, list(text), max_calls=1)
    assert calls == joined == [ToolCall("add", '{"a": 1}')]
