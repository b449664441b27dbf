"""A call whose arguments are text in tags, as Nemotron 3, Qwen3.5 and Qwen's coders write it. Pure.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

The type of a value is only known from the function's schema. Used by `tool_calls`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from mamba_text import strict_json

FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER_END = "</parameter>"
FUNCTION_TAG = re.compile(r"\s*<function=([^<>\n]+)>")
PARAMETER_TAG = re.compile(r"\s*<parameter=([^<>\n]+)>")
_PARAMETER_LINE = re.compile(r"(?<=\n)<parameter=([^<>\n]+)>(?=\n)")
_NOTHING = re.compile(r"\s*\Z")
_BOOLEANS = {"true": True, "false": False}
"""Booleans by their lower-case word: templates show them as Python writes them, and models copy that."""


def read_tagged_call(written: str, parameters: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the name and the arguments, as a JSON object, of the one call in a text; None = it is no call.

    The text is no call if it does not begin and end with the tags of a function, or if there is other text
    between its parameters. `parameters` has the schema of the arguments by the name of the function.
    """
    tag = FUNCTION_TAG.match(written)
    body = written.rstrip()
    if tag is None or not body.endswith(FUNCTION_END):
        return None
    name = tag[1].strip()
    schema = parameters.get(name)
    root = schema if isinstance(schema, Mapping) else {}
    types, declared = SchemaTypes(root), root.get("properties")
    properties = declared if isinstance(declared, Mapping) else {}
    values = _values(body[tag.end() : -len(FUNCTION_END)], properties)
    if values is None:
        return None
    return name, strict_json.encode(
        {key: typed_value(text, types.of(properties.get(key))) for key, text in values}
    )


def _values(body: str, properties: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Return the name and the text of each parameter in `body`; None = there is other text between them.

    `properties` are the parameters of the function. A parameter that has not occurred yet also begins where
    the one before it has no end tag.
    """
    values: list[tuple[str, str]] = []
    seen: set[str] = set()
    place = 0
    while tag := PARAMETER_TAG.match(body, place):
        end = next((end for end in _ends(body, tag.end()) if _closes(body, end)), None)
        if end is None:
            return None
        name = tag[1].strip()
        seen.add(name)
        stop = _next_tag(body, tag.end(), end, lambda key: key in properties and key not in seen)
        values.append((name, _inner(body[tag.end() : end if stop is None else stop])))
        place = end + len(PARAMETER_END) if stop is None else stop
    return values if _NOTHING.match(body, place) else None


def _next_tag(body: str, start: int, end: int, is_missing: Callable[[str], bool]) -> int | None:
    """Return where a value ends because another parameter begins a line; None = at its end tag.

    `is_missing` says of the name of a parameter whether it belongs to the function and has not occurred yet.
    """
    first_end = body.find(PARAMETER_END, start, end)
    for tag in _PARAMETER_LINE.finditer(body, start, end if first_end < 0 else first_end):
        if is_missing(tag[1].strip()):
            return tag.start()
    return None


def _ends(body: str, place: int) -> Iterator[int]:
    while (place := body.find(PARAMETER_END, place)) >= 0:
        yield place
        place += len(PARAMETER_END)


def _closes(body: str, end: int) -> bool:
    """Return whether the tag at `end` ends its parameter: another parameter follows it, or nothing."""
    behind = end + len(PARAMETER_END)
    return bool(PARAMETER_TAG.match(body, behind) or _NOTHING.match(body, behind))


def _inner(text: str) -> str:
    """Return the text without the line ends that separate a value from its tags."""
    return text.removeprefix("\n").removesuffix("\n")


def typed_value(text: str, types: frozenset[str]) -> Any:
    """Return the value that a text stands for, of one of the JSON types `types`; an empty set = of any type.

    A text that fits none of the types stays text, so that nothing the model wrote is lost.
    """
    if types == {"string"}:
        return text
    word = text.strip()
    if word in ("null", "None") and "null" in types:
        return None
    value = _parsed(word)
    if not types:
        return value if isinstance(value, dict | list) else text
    return value if _types_of(value) & types else text


def _parsed(word: str) -> Any:
    """Return the value of a word as JSON; None = invalid JSON, or null."""
    if (boolean := _BOOLEANS.get(word.lower())) is not None:
        return boolean
    try:
        return strict_json.parse(word)
    except (ValueError, RecursionError):
        return None


def _types_of(value: Any) -> frozenset[str]:
    """Return the JSON types that a value has, except for texts and null."""
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case dict():
            return frozenset({"object"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset()


class SchemaTypes:
    """Says which JSON types the parts of a schema allow.

    `root` is the whole schema, in which references are looked up.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, frozenset[str]] = {}
        """Types by reference, each looked up once: many references may lead to each other."""

    def of(self, schema: Any) -> frozenset[str]:
        """Return the types that a schema allows; empty = the schema does not restrict them."""
        if not isinstance(schema, Mapping):
            return frozenset()
        type_, values, reference = schema.get("type"), schema.get("enum"), schema.get("$ref")
        if "const" in schema and not isinstance(values, list):
            values = [schema["const"]]
        if isinstance(type_, str):
            return frozenset({type_})
        if isinstance(type_, list):
            return frozenset(name for name in type_ if isinstance(name, str))
        if isinstance(values, list):
            return frozenset().union(*(_types_of(value) or _type_of_word(value) for value in values))
        if isinstance(reference, str) and (referred := self._of_reference(reference)):
            return referred
        return self._of_parts(schema)

    def _of_parts(self, schema: Mapping[str, Any]) -> frozenset[str]:
        if isinstance(parts := schema.get("allOf"), list):
            part_types = [types for part in parts if (types := self.of(part))]
            if part_types:
                return frozenset.intersection(*part_types)
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(branches, list):
                branch_types = [self.of(branch) for branch in branches]
                return frozenset().union(*branch_types) if all(branch_types) else frozenset()
        return frozenset()

    def _of_reference(self, reference: str) -> frozenset[str]:
        if reference not in self._referred:
            self._referred[reference] = frozenset()
            head, *parts = reference.split("/")
            part_schema: Any = self._root if head == "#" else None
            for part in parts:
                part_schema = _part_of(part_schema, part)
            self._referred[reference] = self.of(part_schema)
        return self._referred[reference]


def _part_of(schema: Any, part: str) -> Any:
    """Return the part of a schema that one step of a JSON pointer names; None = no such part."""
    name = unquote(part).replace("~1", "/").replace("~0", "~")
    if isinstance(schema, Mapping):
        return schema.get(name)
    if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
        return schema[int(name)]
    return None


def _type_of_word(value: Any) -> frozenset[str]:
    return frozenset({"null" if value is None else "string"})
