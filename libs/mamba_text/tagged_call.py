"""A call whose arguments are tags with text in them, as Nemotron 3 and Qwen's coders write it. Pure.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

Which type a value is to have only the function's schema says. Used by `tool_calls`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from mamba_text import strict_json

FUNCTION = "<function="
FUNCTION_END = "</function>"
_PARAMETER_END = "</parameter>"
_FUNCTION_TAG = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER_TAG = re.compile(r"\s*<parameter=([^<>\n]+)>")
_PARAMETER_LINE = re.compile(r"(?<=\n)<parameter=([^<>\n]+)>(?=\n)")
_NOTHING = re.compile(r"\s*\Z")
_BOOLEANS = {"true": True, "false": False}
"""In any case of letters: templates show booleans as Python writes them, and models write that, too."""


def read_tagged_call(written: str, parameters: Mapping[str, Any]) -> tuple[str, str] | None:
    """Name and arguments, a JSON object, of the one call in a text; None = it is none. `parameters`: of each
    function the schema of its arguments."""
    tag = _FUNCTION_TAG.match(written)
    body = written.rstrip()
    if tag is None or not body.endswith(FUNCTION_END):
        return None
    name = tag[1].strip()
    schema = parameters.get(name)
    root = schema if isinstance(schema, Mapping) else {}
    types, properties = SchemaTypes(root), root.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    values = _values(body[tag.end() : -len(FUNCTION_END)], known)
    if values is None:
        return None
    return name, strict_json.encode(
        {key: typed_value(text, types.of(known.get(key))) for key, text in values}
    )


def _values(body: str, known: Mapping[str, Any]) -> list[tuple[str, str]] | None:
    """Name and text of each parameter; None = there is something else between them. `known`: parameters that
    the function has: one that is not there yet begins also where the one before it has no end."""
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    place = 0
    while tag := _PARAMETER_TAG.match(body, place):
        end = next((end for end in _ends(body, tag.end()) if _closes(body, end)), None)
        if end is None:
            return None
        name = tag[1].strip()
        seen.add(name)
        stop = _next_tag(body, tag.end(), end, lambda each: each in known and each not in seen)
        found.append((name, _inner(body[tag.end() : end if stop is None else stop])))
        place = end + len(_PARAMETER_END) if stop is None else stop
    return found if _NOTHING.match(body, place) else None


def _next_tag(body: str, start: int, end: int, is_missing: Callable[[str], bool]) -> int | None:
    """Where the value of a parameter ends because another one, of those that are missing, begins a line;
    None = nowhere before its end tag."""
    first_end = body.find(_PARAMETER_END, start, end)
    for tag in _PARAMETER_LINE.finditer(body, start, end if first_end < 0 else first_end):
        if is_missing(tag[1].strip()):
            return tag.start()
    return None


def _ends(body: str, place: int) -> Iterator[int]:
    while (place := body.find(_PARAMETER_END, place)) >= 0:
        yield place
        place += len(_PARAMETER_END)


def _closes(body: str, end: int) -> bool:
    """The tag there ends a parameter, and is no part of its text: another one follows, or nothing."""
    behind = end + len(_PARAMETER_END)
    return bool(_PARAMETER_TAG.match(body, behind) or _NOTHING.match(body, behind))


def _inner(text: str) -> str:
    """Without the line ends that set a value apart from its tags."""
    return text.removeprefix("\n").removesuffix("\n")


def typed_value(text: str, types: frozenset[str]) -> Any:
    """The value of one of these JSON types that a text stands for; no types = any. One that cannot be of them
    stays text: nothing that the model wrote is lost."""
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
    """None = it is no JSON, or null."""
    if (boolean := _BOOLEANS.get(word.lower())) is not None:
        return boolean
    try:
        return strict_json.parse(word)
    except (ValueError, RecursionError):
        return None


def _types_of(value: Any) -> frozenset[str]:
    """The JSON types that a value has, texts and null left out."""
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
    """Which JSON types parts of a schema allow. `root`: the whole, in which references are looked up."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._referred: dict[str, frozenset[str]] = {}
        """Of each reference, looked up once: many may lead to each other."""

    def of(self, schema: Any) -> frozenset[str]:
        """None = it does not say."""
        if not isinstance(schema, Mapping):
            return frozenset()
        named, values, reference = schema.get("type"), schema.get("enum"), schema.get("$ref")
        if "const" in schema and not isinstance(values, list):
            values = [schema["const"]]
        if isinstance(named, str):
            return frozenset({named})
        if isinstance(named, list):
            return frozenset(each for each in named if isinstance(each, str))
        if isinstance(values, list):
            return frozenset(each for value in values for each in _types_of(value) or _type_of_word(value))
        if isinstance(reference, str) and (referred := self._of_reference(reference)):
            return referred
        if isinstance(parts := schema.get("allOf"), list):
            said = [types for part in parts if (types := self.of(part))]
            if said:
                return frozenset.intersection(*said)
        for branches in (schema.get("anyOf"), schema.get("oneOf")):
            if isinstance(branches, list):
                found = [self.of(branch) for branch in branches]
                return frozenset().union(*found) if all(found) else frozenset()
        return frozenset()

    def _of_reference(self, reference: str) -> frozenset[str]:
        if reference not in self._referred:
            self._referred[reference] = frozenset()
            head, *parts = reference.split("/")
            found: Any = self._root if head == "#" else None
            for part in parts:
                found = _part_of(found, part)
            self._referred[reference] = self.of(found)
        return self._referred[reference]


def _part_of(schema: Any, part: str) -> Any:
    """The part of a schema that one step of a JSON pointer in a reference names; None = there is none."""
    name = unquote(part).replace("~1", "/").replace("~0", "~")
    if isinstance(schema, Mapping):
        return schema.get(name)
    if isinstance(schema, list) and name.isdecimal() and int(name) < len(schema):
        return schema[int(name)]
    return None


def _type_of_word(value: Any) -> frozenset[str]:
    return frozenset({"null" if value is None else "string"})
