"""The grammar of an answer follows from its request: what it allows, and what cannot be followed."""

import asyncio
import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from byte_tokenizer import byte_tokenizer
from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.forms.output_grammar import MAX_CHARS, OutputForm, output_grammar
from mamba_server.grammar_matcher import LIMITS
from mamba_text.chat_template import ChatTemplate
from mamba_text.generation_defaults import GenerationDefaults
from mamba_text.prompt import TextProcessor
from mamba_text.reasoning import THINK
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import GRANITE, HERMES, NEMOTRON, TAGGED, ToolCallFormat

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
    if form is TAGGED:
        markers += "{# <function=… #}"
    return TextProcessor(
        Tokenizer(byte_tokenizer(special), {}), ChatTemplate(markers, {}), GenerationDefaults()
    )


def thinking(*special: str) -> TextProcessor:
    """Return the processor of a model that thinks, and whose calls have the format of Hermes."""
    source = f"{{# {THINK.begin} {THINK.end} {HERMES.begin} #}}{{{{ tools }}}}"
    return TextProcessor(
        Tokenizer(byte_tokenizer(special), {}), ChatTemplate(source, {}), GenerationDefaults()
    )


def grammar(body: dict[str, Any], processor: TextProcessor | None = None, opening: str = "") -> str:
    return output_form(body, processor, opening).grammar


def output_form(
    body: dict[str, Any], processor: TextProcessor | None = None, opening: str = ""
) -> OutputForm:
    kind = CompletionRequest if "prompt" in body else ChatCompletionRequest
    return asyncio.run(output_grammar(kind.model_validate(body), processor or text(), check, opening))


async def check(made: str) -> str:
    return str(LLMatcher.validate_grammar(made, limits=LIMITS))


def allows(grammar: str, written: str, *special: str) -> bool:
    """Return whether the text is a whole answer."""
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
        {"structured_outputs": {"regex": "a" * MAX_CHARS}},
    ],
)
def test_a_form_that_cannot_be_followed_is_an_error_that_names_the_field(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(**fields))
    (name,) = fields
    assert (caught.value.param, caught.value.code) == (name, "invalid_output_grammar")
    assert str(caught.value).startswith(f"{name}: ")


@pytest.mark.parametrize("as_tokens", [True, False])
@pytest.mark.parametrize(
    ("form", "calls"),
    [
        (HERMES, [f"<tool_call>\n{CALL_ADD}\n</tool_call>", f"<tool_call>{CALL_ADD}</tool_call>" * 2]),
        (NEMOTRON, [f"<TOOLCALL>[{CALL_ADD}, {CALL_GO}]</TOOLCALL>"]),
        (GRANITE, [f"<|tool_call|>[{CALL_ADD}]"]),
        (TAGGED, ["<tool_call>\n<function=add>\n</function>\n</tool_call>"]),
    ],
)
@pytest.mark.parametrize(
    "asked", [{"response_format": schema(POINT)}, {"structured_outputs": {"json": POINT}}]
)
def test_an_answer_is_calls_or_has_the_form(
    asked: dict[str, Any], form: ToolCallFormat, calls: list[str], as_tokens: bool
) -> None:
    special = form.markers if as_tokens else ()
    made = grammar(chat(tools=[ADD], **asked), text(form, *special))
    assert all(allows(made, each, *special) for each in [*calls, '{"x": 1}'])
    assert not any(allows(made, each, *special) for each in ("I talk.", "{}", '{"x": 1} and', ""))


def test_an_answer_that_has_to_be_calls_is_whatever_form_is_asked_for() -> None:
    asked = chat(tools=[ADD], tool_choice="required", response_format={"type": "json_object"})
    made = grammar(asked, text(HERMES))
    assert [allows(made, each) for each in (f"<tool_call>{CALL_ADD}</tool_call>", "{}")] == [True, False]


def test_an_answer_behind_thoughts_is_calls_or_has_the_form() -> None:
    made = grammar(chat(tools=[ADD], response_format=schema(POINT)), thinking(), "<think>")
    for answer in (f"<tool_call>{CALL_ADD}</tool_call>", '{"x": 1}'):
        assert allows(made, f"Hm.</think>\n\n{answer}")
    assert not allows(made, "Hm.</think>no")


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


def test_allowed_tools_alone_are_called_where_some_have_to_be() -> None:
    named = {"type": "function", "function": {"name": "go"}}
    for mode, calls in (("required", True), ("auto", False)):
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}}
        made = grammar(chat(tools=[ADD, GO, NOTHING], tool_choice=choice), text(HERMES))
        if not calls:
            assert made == ""
            continue
        assert allows(made, f"<tool_call>{CALL_GO}</tool_call>" * 2)
        assert not allows(made, f"<tool_call>{CALL_ADD}</tool_call>")


def custom(syntax: str = "", definition: str = "", name: str = "run") -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": name, **({"format": grammar} if syntax else {})}}


def run_call(written: str, form: ToolCallFormat) -> str:
    if form is TAGGED:
        argument = f"<parameter=input>\n{written}\n</parameter>"
        return f"<tool_call>\n<function=run>\n{argument}\n</function>\n</tool_call>"
    return f'<tool_call>{{"name": "run", "arguments": {{"input": {json.dumps(written)}}}}}</tool_call>'


@pytest.mark.parametrize(
    ("tool", "form", "right", "wrong"),
    [
        (custom(), HERMES, ["", 'print("a")\n'], []),
        (custom(), TAGGED, ["", 'print("a")\n'], []),
        (custom("regex", r'say "[a-z/]+"(\n|!)'), HERMES, ['say "a/b"!', 'say "a"\n'], ["say a!", ""]),
        (custom("regex", r'say "[a-z/]+"(\n|!)'), TAGGED, ['say "a/b"!', 'say "a"\n'], ["say a!", ""]),
        (custom("lark", 'start: "(" start? ")"'), TAGGED, ["()", "((()))"], ["(()", ""]),
    ],
)
def test_the_input_of_a_custom_tool_that_has_to_be_called_follows_its_format(
    tool: dict[str, Any], form: ToolCallFormat, right: list[str], wrong: list[str]
) -> None:
    choice = {"type": "custom", "custom": {"name": "run"}}
    made = grammar(chat(tools=[ADD, tool], tool_choice=choice), text(form))
    assert [allows(made, run_call(each, form)) for each in right] == [True] * len(right)
    assert [allows(made, run_call(each, form)) for each in wrong] == [False] * len(wrong)
    assert not allows(made, f"<tool_call>{CALL_ADD}</tool_call>")


def test_a_format_that_an_input_does_not_follow_is_named() -> None:
    lark, regex = custom("lark", 'start: "(" start? ")"'), custom("regex", "a+")

    def left_out(tool: dict[str, Any], form: ToolCallFormat, choice: str) -> tuple[str, ...]:
        return output_form(chat(tools=[tool], tool_choice=choice), text(form)).left_out

    assert left_out(lark, HERMES, "required") == ("format",)  # its input is JSON there
    assert [left_out(each, TAGGED, "auto") for each in (lark, regex)] == [()] * 2
    assert [left_out(each, HERMES, "auto") for each in (lark, regex)] == [("format",), ()]
    assert left_out(regex, NEMOTRON, "auto") == ("format",)
    assert left_out(custom(), TAGGED, "auto") == ()
    assert [left_out(each, TAGGED, "required") for each in (lark, regex)] == [()] * 2
    assert left_out(regex, HERMES, "required") == ()
    both = chat(tools=[regex], response_format={"type": "json_object"})
    assert output_form(both, text(HERMES)).left_out == ("format",)


@pytest.mark.parametrize("special", [(), HERMES.markers], ids=["texts", "tokens"])
@pytest.mark.parametrize("form", [HERMES, TAGGED], ids=["json", "tags"])
def test_a_call_of_a_custom_tool_that_the_model_makes_by_itself_follows_its_format(
    form: ToolCallFormat, special: tuple[str, ...]
) -> None:
    tools = [ADD, custom("regex", "a+"), custom("regex", "b+", name="other")]
    made = grammar(chat(tools=tools, tool_choice="auto"), text(form, *special))
    add = '<tool_call>\n{"name": "add", "arguments": {"any": []}}\n</tool_call>'
    good = run_call("aaa", form)
    other = run_call("bb", form).replace("run", "other")
    right = ["", "free <b>text</b>\n", good, f"I run it. {good}", f"{good}\n{other}{good} and so on"]
    if form == HERMES:
        right += [f"{add}\n{good}", 'a { "name": "run" } in words']
    wrong = [run_call("aab", form), f"{good}{run_call('b', form)}", f"{other}\n{run_call('', form)}"]
    wrong += [good[: -len(form.end) - 12], f"x {run_call('a', form).replace('run', 'other')}"]
    for written in right:
        assert allows(made, written, *special), written
    for written in wrong:
        assert not allows(made, written, *special), written


@pytest.mark.parametrize("form", [HERMES, TAGGED])
def test_an_expression_of_a_custom_tool_that_cannot_be_followed_is_refused(form: ToolCallFormat) -> None:
    for definition in ("(a", "(?=a)a"):
        with pytest.raises(InvalidRequest) as caught:
            grammar(chat(tools=[custom("regex", definition)], tool_choice="required"), text(form))
        assert caught.value.param == "tools"


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


LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "where"},
                "unit": {"enum": ["C", "F"]},
                "days": {"type": "integer"},
                "at": {"$ref": "#/$defs/Point"},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city", "at"],
            "additionalProperties": False,
            "$defs": {"Point": POINT},
        },
    },
}


def tagged(*parts: tuple[str, str], name: str = "look") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parts)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


@pytest.mark.parametrize("special", [(), TAGGED.markers])
def test_calls_with_tags_have_the_arguments_that_their_function_names(special: tuple[str, ...]) -> None:
    made = grammar(chat(tools=[LOOK, NOTHING], tool_choice="required"), text(TAGGED, *special))
    city, at = ("city", "New\n\n<York> </b>"), ("at", '{"x": 1, "tag": "a"}')
    for right in (
        tagged(city, at),
        tagged(city, ("unit", "F"), ("days", "3"), at, ("note", "any")),
        tagged(("city", ""), at),
        tagged(name="stop"),
        tagged(city, at) + "\n" + tagged(name="stop"),
    ):
        assert allows(made, right, *special)
    for wrong in (
        tagged(city),
        tagged(at, city),
        tagged(city, ("unit", "K"), at),
        tagged(city, ("days", "three"), at),
        tagged(city, ("at", '{"x": "1"}')),
        tagged(city, at, ("more", "1")),
        tagged(name="go"),
        '<tool_call>\n{"name": "stop"}\n</tool_call>',
        "I would rather talk.",
    ):
        assert not allows(made, wrong, *special)


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "oneOf": [{"required": ["a"]}]},
        {"type": "array"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "integer", "dependentRequired": {}}}},
    ],
)
def test_arguments_of_tags_that_cannot_be_followed_are_an_error_of_the_tools(parameters: Any) -> None:
    odd = {"type": "function", "function": {"name": "odd", "parameters": parameters}}
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(tools=[odd], tool_choice="required"), text(TAGGED))
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_output_grammar")


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": schema(POINT)}, '{"x": 1}', "{}"),
    ({"structured_outputs": {"regex": r"\d{3}"}}, "123", "12"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "maybe"),
    ({"structured_outputs": {"grammar": 'start: "a" word\nword: /[xy]+/'}}, "axy", "bx"),
    ({"tools": [ADD], "tool_choice": "required"}, f"<tool_call>{CALL_ADD}</tool_call>", CALL_ADD),
]


@pytest.mark.parametrize(("fields", "right", "wrong"), FORMS)
@pytest.mark.parametrize("special", [(), THINK.markers])
def test_the_form_is_that_of_what_comes_behind_the_thoughts(
    fields: dict[str, Any], right: str, wrong: str, special: tuple[str, ...]
) -> None:
    opened = grammar(chat(**fields), thinking(*special), "assistant\n<think>\n")
    for thought in ("", "Hm, 1 < 2.\n\n</th", "</b>{}"):
        assert allows(opened, f"{thought}</think>\n\n{right}", *special)
        assert allows(opened, f"{thought}</think>{right}", *special)
        assert not allows(opened, f"{thought}</think>\n\n{wrong}", *special)
    assert not allows(opened, right, *special)

    closed = grammar(chat(**fields), thinking(*special), "assistant\n<think></think>")
    assert allows(closed, right, *special)
    assert not allows(closed, f"Hm.</think>{right}", *special)
    assert not allows(closed, f"<think>Hm.</think>{right}", *special)

    unsaid = grammar(chat(**fields), thinking(*special), "assistant\n")
    assert allows(unsaid, right, *special)
    # One that thinks by itself has a token for it.
    assert allows(unsaid, f"<think>Hm.</think>\n\n{right}", *special) is bool(special)
    assert not allows(unsaid, f"Hm.</think>{right}", *special)
    assert not allows(unsaid, f"<think>Hm.</think>{wrong}", *special)


def test_a_marker_that_is_a_token_ends_the_thoughts_also_where_it_is_spelt() -> None:
    made = grammar(chat(structured_outputs={"regex": "x+"}), thinking(*THINK.markers), "<think>")
    rust = byte_tokenizer(THINK.markers)
    matcher = LLMatcher(LLTokenizer(rust.to_str(), eos_token=rust.token_to_id("<eos>")), made)
    spelt = byte_tokenizer().encode("Hm.</think>\nx", add_special_tokens=False).ids
    assert matcher.try_consume_tokens(spelt) == len(spelt)
    assert matcher.is_accepting()


@pytest.mark.parametrize("odd", ['{"a": 1}', '{"grammars": []}', '{"grammars": [1]}', "{"])
def test_json_that_is_no_grammar_is_refused_whether_the_model_thinks_or_not(odd: str) -> None:
    for processor in (text(), thinking()):
        with pytest.raises(InvalidRequest) as caught:
            grammar(chat(structured_outputs={"grammar": odd}), processor, "<think>")
        assert caught.value.code == "invalid_output_grammar"


def test_an_answer_does_not_end_before_it_has_its_form() -> None:
    made = grammar(chat(structured_outputs={"regex": "x+"}), thinking(), "<think>")
    rust = byte_tokenizer()
    matcher = LLMatcher(LLTokenizer(rust.to_str(), eos_token=rust.token_to_id("<eos>")), made)
    assert matcher.try_consume_tokens(rust.encode("Hm.").ids) == 3
    assert matcher.try_consume_tokens([rust.token_to_id("<eos>")]) == 0


def test_a_completion_has_no_thoughts() -> None:
    made = grammar({"prompt": "<think>", "structured_outputs": {"regex": "x+"}}, thinking())
    assert allows(made, "x")
    assert not allows(made, "Hm.</think>x")


def test_a_json_object_follows_the_schema_that_stands_beside_it() -> None:
    made = grammar(chat(response_format={"type": "json_object", "schema": POINT}))
    assert [allows(made, each) for each in ('{"x": 1}', "{}")] == [True, False]


def test_a_format_that_nobody_knows_asks_for_nothing_and_a_known_one_does() -> None:
    def of(name: str) -> str:
        properties = {"format": {"type": "string", "format": name}}
        return grammar(chat(response_format=schema({"properties": properties, "required": ["format"]})))

    assert allows(of("cuid2"), '{"format": "any"}')
    assert [allows(of("date"), f'{{"format": "{each}"}}') for each in ("any", "2026-01-31")] == [False, True]


OVERLAPPING = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
NOT_ENFORCED: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems", "[1, 1]"),
    ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}}, "contains", "[1, 1]"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames", '{"b": 1}'),
    ({"type": "integer", "not": {"const": 3}}, "not", "3"),
    ({"type": "integer", "if": {"const": 3}, "then": False}, "if, then", "3"),
    ({"type": "string", "pattern": r"^(?!0)\d+$"}, "pattern", '"01"'),
    ({"type": "string", "pattern": r"\bword\b"}, "pattern", '"other"'),
    (OVERLAPPING, "oneOf", "1.5"),
]


def strictly(value: dict[str, Any], *, strict: bool) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": value, "strict": strict}}


@pytest.mark.parametrize(("value", "names", "written"), NOT_ENFORCED)
def test_what_of_a_schema_cannot_be_enforced_is_left_out_and_named(
    value: dict[str, Any], names: str, written: str
) -> None:
    inner = {"type": "object", "properties": {"a": value}, "required": ["a"]}
    made = output_form(chat(response_format=strictly(inner, strict=False)))
    assert ", ".join(made.left_out) == names
    # The rest of the schema is followed.
    assert [allows(made.grammar, each) for each in (f'{{"a": {written}}}', '{"a": null}', "{}")] == [
        True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "names", "_"), NOT_ENFORCED)
def test_a_strict_schema_is_followed_as_a_whole_or_refused(value: dict[str, Any], names: str, _: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        output_form(chat(response_format=strictly(value, strict=True)))
    assert names.partition(",")[0] in caught.value.message
    tool = {"type": "function", "function": {"name": "f", "strict": True,
            "parameters": {"type": "object", "properties": {"a": value}}}}  # fmt: skip
    with pytest.raises(InvalidRequest):
        output_form(chat(tools=[tool], tool_choice="required"), text(HERMES))
    tool["function"]["strict"] = False  # type: ignore[index] # of the object above
    assert ", ".join(output_form(chat(tools=[tool], tool_choice="required"), text(HERMES)).left_out) == names


@pytest.mark.parametrize(
    "value",
    [
        {"type": "array", "uniqueItems": False},
        {"type": "object", "propertyNames": {"type": "string"}},
        {"type": "string", "pattern": r"^[(?=]\\b$"},
        {"type": "object", "properties": {"not": {"type": "integer"}, "if": {"type": "integer"}}},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"enum": [{"not": 1}]},
        *({"type": "string", "format": each} for each in ("binary", "path", "password", "base64")),
    ],
)
def test_nothing_is_named_of_a_schema_that_is_followed_as_a_whole(value: dict[str, Any]) -> None:
    assert output_form(chat(response_format=strictly(value, strict=True))).left_out == ()


def test_a_form_that_is_refused_says_what_to_change_and_names_no_option_of_a_library() -> None:
    for value, says in (
        (OVERLAPPING, "use anyOf"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "'dependentRequired'; leave them out"),
        ({"not": {}}, "leave it out, or send 'strict': false"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            grammar(chat(response_format=strictly(value, strict=True)))
        assert "coerce_one_of" not in caught.value.message
        assert says in caught.value.message


@pytest.mark.parametrize("odd", ["", "# nothing but words", "%json {}"])
def test_a_grammar_without_a_rule_is_refused_by_who_knows_grammars(odd: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar(chat(structured_outputs={"grammar": odd}))
    assert "zip" not in caught.value.message


def test_a_tool_template_of_its_own_says_how_calls_are_written() -> None:
    of_tools = ChatTemplate(f"{{# {HERMES.begin} #}}{{{{ tools }}}}", {})
    plain = ChatTemplate("{{ messages }}", {}, with_tools=of_tools)
    processor = TextProcessor(Tokenizer(byte_tokenizer(), {}), plain, GenerationDefaults())
    made = grammar(chat(tools=[ADD], tool_choice="required"), processor)
    assert allows(made, f"<tool_call>{CALL_ADD}</tool_call>")
