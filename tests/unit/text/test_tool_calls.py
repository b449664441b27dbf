"""Calls of tools out of what models write, however the text is cut into pieces."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_text.tool_calls import (
    GRANITE,
    HERMES,
    MOST_ENDS,
    NEMOTRON,
    TAGGED,
    ParsedOutput,
    ToolCall,
    ToolCallFormat,
    format_of,
)
from mamba_text.tool_calls import ToolCallReader as Reader

CALL = '{"name": "add", "arguments": {"a": 1, "b": "<\\u00e9>"}}'
ADD = ToolCall("add", '{"a": 1, "b": "<é>"}')


def read(form: ToolCallFormat, text: str, pieces: int = 1, most: int | None = None) -> ParsedOutput:
    """Return the result of an answer in pieces of `size` characters; 0 = whole."""
    reader = Reader(form, most)
    size = pieces or len(text) or 1
    parts = [text[at : at + size] for at in range(0, len(text), size)] or [""]
    got = [reader.feed(part, last=place == len(parts) - 1) for place, part in enumerate(parts)]
    calls = tuple(call for each in got for call in each.calls)
    assert reader.calls == len(calls)
    return ParsedOutput("".join(each.text for each in got), calls)


WRITTEN: list[tuple[ToolCallFormat, str, str, tuple[ToolCall, ...]]] = [
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", (ADD,)),
    (HERMES, f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>\n", "", (ADD, ADD)),
    (HERMES, f"Let me see.\n\n<tool_call>{CALL}</tool_call>", "Let me see.", (ADD,)),
    (HERMES, f"a <tool_call>{CALL}</tool_call> b", "a b", (ADD,)),
    (HERMES, f"<tool_call>{CALL}", "", (ADD,)),
    (NEMOTRON, f"<TOOLCALL>[{CALL}, {CALL}]</TOOLCALL>", "", (ADD, ADD)),
    (NEMOTRON, '<TOOLCALL>[{"name": "now"}]</TOOLCALL>', "", (ToolCall("now", "{}"),)),
    (GRANITE, f"<|tool_call|>[{CALL}]", "", (ADD,)),
    (GRANITE, f"Yes.<|tool_call|> [{CALL}]\n", "Yes.", (ADD,)),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "",
     (ToolCall("f", '{"x": 1}'),)),
    (HERMES, "no call at all \n", "no call at all \n", ()),
    (HERMES, "1 < 2, <tool, <tool_cal", "1 < 2, <tool, <tool_cal", ()),
    (HERMES, " \n", " \n", ()),
    (HERMES, "", "", ()),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "said", "calls"), WRITTEN)
@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 7, 11])
def test_calls_are_read_and_the_rest_is_text(
    form: ToolCallFormat, text: str, said: str, calls: tuple[ToolCall, ...], pieces: int
) -> None:
    assert read(form, text, pieces) == ParsedOutput(said, calls)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{not json}</tool_call>",
        "<tool_call>{not json} and no end",
        "<tool_call></tool_call>",
        "<tool_call>[]</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>[{"name": "f"}, 3]</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "\\ud800"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "\\ud800"}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>",
    ],
)
@pytest.mark.parametrize("pieces", [0, 5000])
def test_what_cannot_be_read_stays_text_to_the_letter(text: str, pieces: int) -> None:
    assert read(HERMES, f"a {text} b", pieces) == ParsedOutput(f"a {text} b", ())


def test_half_a_character_in_arguments_is_replaced() -> None:
    call = '{"name": "f", "arguments": {"a": "\\ud83d", "b": "é"}}'
    (got,) = read(HERMES, f"<tool_call>{call}</tool_call>").calls
    assert json.loads(got.arguments.encode()) == {"a": "\ufffd", "b": "é"}


def test_of_several_calls_the_first_alone_is_given_where_one_was_asked_for() -> None:
    other = '{"name": "sub", "arguments": {}}'
    assert read(NEMOTRON, f"<TOOLCALL>[{CALL}, {other}]</TOOLCALL>", most=1).calls == (ADD,)
    assert read(HERMES, f"<tool_call>{CALL}</tool_call><tool_call>{other}</tool_call>", most=1).calls == (
        ADD,
    )


def test_text_is_given_out_as_soon_as_it_is_certain() -> None:
    reader = Reader(HERMES)
    assert [reader.feed(piece, last=False).text for piece in ("one", " two <", "b> ", "<tool", "s>")] == [
        "one", " two", " <b>", "", " <tools>",
    ]  # fmt: skip


@given(
    st.lists(
        st.one_of(
            st.text(alphabet="ab <>/_tolc\n", min_size=1, max_size=8),
            st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=8), max_size=3),
        ),
        max_size=6,
    ),
    st.integers(1, 9),
)
def test_no_call_is_lost_whatever_stands_around_it(parts: list[Any], size: int) -> None:
    text, wanted = "", []
    for place, part in enumerate(parts):
        if isinstance(part, str):
            text += part
            continue
        text += f"<tool_call>{json.dumps({'name': f'f{place}', 'arguments': part})}</tool_call>"
        wanted.append((f"f{place}", part))
    got = read(HERMES, text, size)
    assert [(call.name, json.loads(call.arguments)) for call in got.calls] == wanted
    plain = "".join(part for part in parts if isinstance(part, str))
    assert "".join(got.text.split()) == "".join(plain.split())


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("{{ '<TOOLCALL>' }} … <tool_call>", NEMOTRON),
        ("write <|tool_call|> followed by a list", GRANITE),
        ("within <tool_call></tool_call> tags", HERMES),
        ("<tool_call>\n<function=name>", TAGGED),
        ("<function=name>", None),
        ("{{ messages }}{{ tools }}", None),
    ],
)
def test_the_template_tells_the_format(source: str, form: ToolCallFormat | None) -> None:
    assert format_of(source) is form


NOW = {"now": {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}}
IN_A_STRING = {"code": 'a</tool_call>"</tool_call>b'}


def tags(*lines: str, begin: str = "<tool_call>\n", end: str = "\n</tool_call>") -> str:
    return begin + "\n".join(("<function=now>", *lines, "</function>")) + end


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize(
    ("form", "text", "said", "calls"),
    [
        (
            HERMES, f"<tool_call>{json.dumps({'name': 'now', 'arguments': IN_A_STRING})}</tool_call>",
            "", [IN_A_STRING],
        ),
        (HERMES, 'x <tool_call>{"name": "now", "parameters": {"a": "b"}}</tool_call>', "x", [{"a": "b"}]),
        (
            HERMES, '<tool_call>{"name": "now", "a": "b"}</tool_call>',
            '<tool_call>{"name": "now", "a": "b"}</tool_call>', [],
        ),
        (
            HERMES, '<tool_call>{"name": "now"}\n{"name": "now", "arguments": {"n": 2}}</tool_call>',
            "", [{}, {"n": 2}],
        ),
        (
            HERMES, '<tool_call>{"name": "no</tool_call> <tool_call>{"name": "now"}</tool_call>',
            '<tool_call>{"name": "no</tool_call>', [{}],
        ),
        (TAGGED, "Let me look.\n\n" + tags(begin=""), "Let me look.", [{}]),
        (
            TAGGED, tags("<parameter=n>\n5\n</parameter>", begin="", end="\nDone."),
            "\nDone.", [{"n": 5}],
        ),
        (TAGGED, "Write <function=f> in front.", "Write <function=f> in front.", []),
        (TAGGED, "<function=now>\n<parameter=a>", "<function=now>\n<parameter=a>", []),
        (
            TAGGED, tags("<parameter=a>\n'</tool_call>'\n</parameter>"), "", [{"a": "'</tool_call>'"}],
        ),
        (
            TAGGED, tags("<parameter=a>\nx", "<parameter=n>\n5\n</parameter>"), "", [{"a": "x", "n": 5}],
        ),
        (
            TAGGED, tags("<parameter=a>\nx", "<parameter=b>", "</parameter>"),
            "", [{"a": "x\n<parameter=b>"}],
        ),
    ],
)  # fmt: skip
def test_calls_are_read_as_models_write_them(
    form: ToolCallFormat, text: str, said: str, calls: list[dict[str, Any]], size: int
) -> None:
    reader = Reader(form, parameters=NOW)
    parts = [text[place : place + size] for place in range(0, len(text), size)]
    outputs = [reader.feed(part, last=False) for part in parts] + [reader.feed("", last=True)]
    assert "".join(output.text for output in outputs) == said
    found = [call for output in outputs for call in output.calls]
    assert [json.loads(call.arguments) for call in found] == calls


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"allOf": [{"$ref": "#/$defs/N"}], "description": "d"}, 5),
        ({"$ref": "#/$defs/a~1b%20c"}, 5),
        ({"const": 5}, 5),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "string"}]}, "5"),
    ],
)
def test_a_tagged_value_has_the_type_that_its_schema_names_in_one_of_many_ways(
    schema: Any, value: Any
) -> None:
    root = {"properties": {"n": schema}, "$defs": {"N": {"type": "integer"}, "a/b c": {"type": "integer"}}}
    reader = Reader(TAGGED, parameters={"f": root})
    text = "<tool_call><function=f><parameter=n>5</parameter></function></tool_call>"
    (call,) = reader.feed(text, last=True).calls
    assert json.loads(call.arguments) == {"n": value}


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        (HERMES, '<tool_call>"', "</tool_call>"),
        (TAGGED, "<tool_call>x", "</tool_call>"),
        (TAGGED, "<function=f>x", "</function>"),
    ],
)
def test_an_answer_of_nothing_but_end_markers_is_text_before_it_is_over(
    form: ToolCallFormat, begin: str, end: str
) -> None:
    reader = Reader(form, parameters={"f": {}})
    written = begin + end * 2 * MOST_ENDS
    read = reader.feed(written, last=False)
    assert read.text
    more = reader.feed('<tool_call>{"name": "f"}</tool_call>' if form is HERMES else "", last=True)
    assert read.text + more.text == written
    assert len(more.calls) == (form is HERMES)
