"""The grammar of an answer follows from its request: what it allows, and what cannot be followed."""

import asyncio
import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from byte_tokenizer import byte_tokenizer
from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.output_grammar import MOST_CHARS, output_grammar
from mamba_text.chat_template import ChatTemplate
from mamba_text.generation_defaults import GenerationDefaults
from mamba_text.prompt import TextProcessor
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import GRANITE, HERMES, NEMOTRON, ToolCallFormat

USER = [{"role": "user", "content": "x"}]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "tag": {"enum": ["a", "b"]}},
    "required": ["x"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {"at": {"$ref": "#/$defs/Point"}},
    "required": ["at"],
    "additionalProperties": False,
    "$defs": {"Point": POINT},
}
ADD = {"type": "function", "function": {"name": "add", "parameters": POINT}}
GO = {"type": "function", "function": {"name": "go", "parameters": NESTED}}
NOTHING = {"type": "function", "function": {"name": "stop"}}
CALL_ADD = '{"name": "add", "arguments": {"x": 1}}'
CALL_GO = '{"name": "go", "arguments": {"at": {"x": 2, "tag": "b"}}}'


def text(form: ToolCallFormat | None = None, *special: str) -> TextProcessor:
    markers = "" if form is None else f"{{# {form.begin} {form.end} #}}{{{{ tools }}}}"
    return TextProcessor(
        Tokenizer(byte_tokenizer(special), {}), ChatTemplate(markers, {}), GenerationDefaults()
    )


def grammar(body: dict[str, Any], processor: TextProcessor | None = None) -> str:
    kind = CompletionRequest if "prompt" in body else ChatCompletionRequest
    return asyncio.run(output_grammar(kind.model_validate(body), processor or text()))


def allows(grammar: str, written: str, *special: str) -> bool:
    """Whether the text is a whole answer."""
    rust = byte_tokenizer(special)
    matcher = LLMatcher(LLTokenizer(rust.to_str(), eos_token=rust.token_to_id("<eos>")), grammar)
    assert not matcher.is_error(), matcher.get_error()
    ids = rust.encode(written, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, **fields}


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "point", "schema": of, "strict": True}}


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"tools": [ADD], "tool_choice": "none"}]
)
def test_nothing_is_asked_of_a_plain_answer(fields: dict[str, Any]) -> None:
    assert grammar(chat(**fields)) == ""


@pytest.mark.parametrize(
    ("fields", "right", "wrong"),
    [
        (
            {"response_format": {"type": "json_object"}},
            ["{}", '{"a": [1, null]}'], ["[]", "x", "{", '{ "a": 1}'],
        ),
        (
            {"response_format": schema(POINT)},
            ['{"x": 1}', '{"x": -2, "tag": "a"}'], ["{}", '{"x": "1"}', '{"x": 1, "y": 2}'],
        ),
        ({"response_format": schema(NESTED)}, ['{"at": {"x": 1}}'], ['{"at": {}}']),
        ({"structured_outputs": {"json": POINT}}, ['{"x": 1}'], ["{}"]),
        ({"structured_outputs": {"json": json.dumps(POINT)}}, ['{"x": 1}'], ["{}"]),
        ({"structured_outputs": {"json_object": True}}, ["{}"], ["[]"]),
        ({"structured_outputs": {"regex": r"\d{3}-[a-c]+"}}, ["123-abc"], ["12-abc", "123-", "123-abc "]),
        (
            {"structured_outputs": {"choice": ["yes", 'no "way"', "ja\nnein"]}},
            ["yes", 'no "way"', "ja\nnein"], ["y", "yesyes", "no"],
        ),
        ({"structured_outputs": {"grammar": 'start: "a" word\nword: /[xy]+/'}}, ["axy"], ["a", "bx"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [{"messages": USER}, {"prompt": "x"}])
def test_an_answer_has_the_form_that_was_asked_for(
    body: dict[str, Any], fields: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    made = grammar({**body, **fields})
    assert [allows(made, each) for each in right] == [True] * len(right)
    assert [allows(made, each) for each in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": schema({"type": "foo"})},
        {"response_format": schema({"type": "object", "properties": {"a": {"not": {}}}})},
        {"response_format": schema({"$ref": "#/$defs/none"})},
        {"structured_outputs": {"json": "{"}},
        {"structured_outputs": {"json": "[1]"}},
        {"structured_outputs": {"regex": "(a"}},
        {"structured_outputs": {"grammar": "start: nowhere"}},
        {"structured_outputs": {"regex": "a" * MOST_CHARS}},
    ],
)
def test_a_form_that_cannot_be_followed_is_an_error_that_names_the_field(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(**fields))
    (name,) = fields
    assert (caught.value.param, caught.value.code) == (name, "invalid_output_grammar")
    assert str(caught.value).startswith(f"{name}: ")


@pytest.mark.parametrize("name", ["response_format", "structured_outputs"])
def test_a_form_that_would_leave_no_room_for_tools_is_refused(name: str) -> None:
    asked = {"response_format": {"type": "json_object"}, "structured_outputs": {"json_object": True}}[name]
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(tools=[ADD], **{name: asked}), text(HERMES))
    assert caught.value.param == name


def test_a_model_that_may_call_tools_is_not_forced_to() -> None:
    assert grammar(chat(tools=[ADD]), text(HERMES)) == ""
    assert (
        grammar(chat(tools=[ADD], tool_choice="auto", response_format={"type": "text"}), text(HERMES)) == ""
    )


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize(
    ("form", "one", "two"),
    [
        (
            HERMES,
            f"<tool_call>\n{CALL_ADD}\n</tool_call>",
            f"<tool_call>{CALL_ADD}</tool_call>\n<tool_call>{CALL_GO}</tool_call>",
        ),
        (NEMOTRON, f"<TOOLCALL>[{CALL_ADD}]</TOOLCALL>", f"<TOOLCALL>[{CALL_GO}, {CALL_ADD}]</TOOLCALL>"),
        (GRANITE, f"<|tool_call|>[{CALL_ADD}]", f"<|tool_call|>[{CALL_GO}, {CALL_GO}]"),
    ],
)  # fmt: skip
def test_required_calls_are_written_as_the_template_teaches(
    form: ToolCallFormat, one: str, two: str, as_tokens: bool
) -> None:
    special = form.markers if as_tokens else ()
    asked = chat(tools=[ADD, GO, NOTHING], tool_choice="required")
    made = grammar(asked, text(form, *special))
    assert allows(made, one, *special)
    assert allows(made, two, *special)
    for wrong in (
        "I would rather talk.",
        "",
        CALL_ADD,
        one.replace('"x": 1', '"x": "1"'),
        one.replace("add", "sub"),
    ):
        assert not allows(made, wrong, *special)
    single = grammar({**asked, "parallel_tool_calls": False}, text(form, *special))
    assert [allows(single, each, *special) for each in (one, two)] == [True, False]


def test_a_named_function_is_called_once() -> None:
    named = {"type": "function", "function": {"name": "go"}}
    made = grammar(chat(tools=[ADD, GO], tool_choice=named), text(HERMES))
    calls = [f"<tool_call>{call}</tool_call>" for call in (CALL_GO, CALL_ADD)]
    assert [allows(made, each) for each in (*calls, calls[0] * 2)] == [True, False, False]


def test_parameters_that_cannot_be_followed_are_an_error_of_the_tools() -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": {"type": "foo"}}}
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(tools=[odd], tool_choice="required"), text(HERMES))
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_output_grammar")
