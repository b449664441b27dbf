"""Calls whose arguments are tags with text, and the types that the functions' schemas give to the texts."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_text.tagged_call import SchemaTypes, read_tagged_call, typed_value
from mamba_text.tool_calls import TAGGED, ParsedOutput, ToolCall, ToolCallReader

PARAMETERS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "detailed": {"type": "boolean"},
            "places": {"type": "array", "items": {"type": "string"}},
            "unit": {"enum": ["C", "F"]},
            "near": {"$ref": "#/$defs/Near"},
            "at": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
        "$defs": {"Near": {"type": "object"}},
    }
}
CALL = """<tool_call>
<function=weather>
<parameter=city>
Paris
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
WEATHER = ToolCall("weather", '{"city": "Paris", "days": 3}')


def read(text: str, size: int) -> ParsedOutput:
    reader = ToolCallReader(TAGGED, None, PARAMETERS)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    got = [reader.feed(part, last=place == len(parts) - 1) for place, part in enumerate(parts)]
    return ParsedOutput(
        "".join(each.text for each in got), tuple(call for each in got for call in each.calls)
    )


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "said", "calls"),
    [
        (CALL, "", (WEATHER,)),
        (f"Let me see.\n\n{CALL}\n{CALL}\n", "Let me see.", (WEATHER, WEATHER)),
        (CALL.removesuffix("\n</tool_call>"), "", (WEATHER,)),
        ("<tool_call><function=now></function></tool_call>", "", (ToolCall("now", "{}"),)),
        (
            "<tool_call><function=f><parameter=a>1 < 2</parameter><parameter=b>\n</parameter></function>",
            "", (ToolCall("f", '{"a": "1 < 2", "b": ""}'),),
        ),
        ("no call, <tool", "no call, <tool", ()),
    ],
)  # fmt: skip
def test_calls_are_read_and_the_rest_is_text(
    text: str, said: str, calls: tuple[ToolCall, ...], size: int
) -> None:
    assert read(text, size) == ParsedOutput(said, calls)


@pytest.mark.parametrize(
    "inner",
    [
        "",
        '{"name": "f"}',
        "<function=f>",
        "<function=>\n</function>",
        "<function=f> x </function>",
        "<function=f><parameter=a>1</function>",
        "<function=f><parameter=a>1</parameter> and more</function>",
        "<function=f><parameter=>1</parameter></function>",
        "x <function=f></function>",
    ],
)
def test_what_is_no_call_stays_text_to_the_letter(inner: str) -> None:
    text = f"a <tool_call>{inner}</tool_call> b"
    assert read(text, 7) == ParsedOutput(text, ())


def arguments(key: str, text: str) -> Any:
    written = f"<function=weather>\n<parameter={key}>\n{text}\n</parameter>\n</function>"
    read = read_tagged_call(written, PARAMETERS)
    assert read is not None
    return json.loads(read[1])[key]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "3", "3"),
        ("city", "true", "true"),
        ("city", "  two\n\nlines ", "  two\n\nlines "),
        ("city", 'a </parameter> b "\\" </function>', 'a </parameter> b "\\" </function>'),
        ("days", "3", 3),
        ("days", " 3\n", 3),
        ("days", "three", "three"),
        ("days", "true", "true"),
        ("days", "1" * 5000, "1" * 5000),
        ("detailed", "true", True),
        ("detailed", "False", False),
        ("detailed", "yes", "yes"),
        ("places", '["a", "b"]', ["a", "b"]),
        ("places", '{"a": 1}', '{"a": 1}'),
        ("places", "[NaN]", "[NaN]"),
        ("places", "[" * 50_000, "[" * 50_000),
        ("unit", "C", "C"),
        ("near", '{"x": 1.5}', {"x": 1.5}),
        ("at", "null", None),
        ("at", "None", None),
        ("at", "7", 7),
        ("unknown", "7", "7"),
        ("unknown", '{"x": 1}', {"x": 1}),
    ],
)
def test_a_text_becomes_a_value_of_the_type_that_the_schema_names(key: str, text: str, value: Any) -> None:
    assert arguments(key, text) == value


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@given(VALUES)
def test_json_of_a_value_becomes_that_value_where_its_type_is_allowed(value: Any) -> None:
    every = frozenset({"null", "boolean", "integer", "number", "object", "array"})
    assert typed_value(json.dumps(value), every) == value


@given(st.text(), st.sampled_from([{"type": "string"}, {"enum": ["a"]}]))
def test_a_text_that_may_be_any_is_not_touched(text: str, schema: dict[str, Any]) -> None:
    assert typed_value(text, SchemaTypes({}).of(schema)) == text


def test_references_that_lead_to_each_other_end_at_once() -> None:
    branches = [{"$ref": f"#/$defs/{name}"} for name in "abcdefgh"] * 50
    root = {"$defs": {name: {"anyOf": branches} for name in "abcdefgh"}}
    assert SchemaTypes(root).of({"$ref": "#/$defs/a"}) == frozenset()


@pytest.mark.parametrize("repeated", ["<parameter=a>", "</parameter>x", "<parameter=a>1</parameter> ", "\n"])
def test_a_long_call_is_read_in_a_time_that_its_length_explains(repeated: str) -> None:
    def seconds(times: int) -> float:
        written = f"<function=f>{repeated * times}</function>"
        begin = time.process_time()
        read_tagged_call(written, {})
        return time.process_time() - begin

    assert seconds(100_000) < 50 * seconds(10_000) + 0.05
