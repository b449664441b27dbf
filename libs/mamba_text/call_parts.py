"""Readers of calls that are still being written: the name at once, the arguments piece by piece. Pure.

`ToolCallReader` passes the text of each possible call to one of these readers as well. A reader begins a call
once the call names an offered function and its arguments have begun; the arguments so far are a beginning of
the whole call's arguments. A reader ignores calls in an unusual form: clients then receive these whole.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mamba_text import strict_json
from mamba_text.tagged_call import (
    FUNCTION_END,
    FUNCTION_TAG,
    PARAMETER_END,
    PARAMETER_TAG,
    SchemaTypes,
    typed_value,
)

MOST_HEAD = 1024
"""Longest beginning of a call, up to its arguments, in characters."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_BLANK = re.compile(r"\s*")
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_LONE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_PARAMETER_LINE = re.compile(r"\n<parameter=([^<>\n]+)>(?=\n)")


@dataclass(frozen=True, slots=True)
class CallPart:
    """The characters that one call has gained, for a client that receives calls while the model writes."""

    name: str
    """Name of the function, with which the call begins; "" = the part belongs to the last call that began."""
    arguments: str
    """New text of the arguments."""
    last: bool = False
    """Whether the call ends."""


class CallPartsReader(Protocol):
    """Finds calls, and what is known of them so far, in text that arrives between two markers."""

    calls: list["BegunCall"]

    def feed(self, text: str) -> None:
        """Read more of the text, and add the names and arguments in it to `calls`."""


@dataclass(slots=True)
class BegunCall:
    """A call as far as its text has arrived."""

    name: str
    arguments: str = ""
    """Text of the arguments so far."""
    complete: bool = False
    """Whether the arguments are complete."""


def json_head(text: str) -> tuple[str, int] | bool | None:
    """Return the name in the head of a call in JSON, and the index at which its arguments begin.

    The call begins at the first character: `{"name": "…", "arguments": {`. The result is False if the text
    does not begin so, and None if too little of it has arrived to tell.
    """
    place, name = 0, ""
    for expected in ("{", '"name"', ":", "", ",", "arguments", ":", "{"):
        match = _BLANK.match(text, place)
        place = match.end() if match else place
        rest = text[place : place + MOST_HEAD]
        if expected == "":
            string = _STRING.match(rest)
            if string is None:
                return None if rest[:1] in ("", '"') and len(rest) < MOST_HEAD else False
            try:
                name = json.loads(string[0])
            except ValueError:
                return False
            place += string.end()
            continue
        words = ('"arguments"', '"parameters"') if expected == "arguments" else (expected,)
        word = next((word for word in words if rest.startswith(word)), None)
        if word is None:
            return None if any(word.startswith(rest) for word in words) else False
        place += len(word)
    return name, place - 1


class JsonCallParts:
    """Finds calls in JSON while it arrives: one call, several in a row, or a list of calls."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self.calls: list[BegunCall] = []
        self._pending = ""
        self._dead = self._in_arguments = self._in_string = False
        self._depth = 0

    def feed(self, text: str) -> None:
        """Read more of the text, and add the names and arguments in it to `calls`."""
        self._pending += text
        while self._pending and not self._dead:
            before = self._pending
            if self._in_arguments:
                self._read_arguments()
            else:
                self._read_head()
            if self._pending == before:
                return

    def _read_head(self) -> None:
        if self.calls:
            # The call before this one ends, and a list or another call may go on.
            self._pending = re.sub(r"^[\s}\],]+", "", self._pending)
        rest = self._pending.lstrip(" \t\r\n[,")
        if not rest:
            return
        head = json_head(rest)
        if head is None and len(rest) < 2 * MOST_HEAD:
            return
        if not isinstance(head, tuple) or head[0] not in self._names:
            self._dead = True
            return
        self.calls.append(BegunCall(head[0]))
        self._pending, self._in_arguments, self._in_string, self._depth = rest[head[1] :], True, False, 0

    def _read_arguments(self) -> None:
        text, place, out = self._pending, 0, []
        while self._in_arguments and place < len(text):
            pattern = _INSIDE if self._in_string else _OUTSIDE
            match = pattern.search(text, place)
            if match is None:
                out.append(text[place:])
                place = len(text)
                break
            if match[0] == "\\":
                out.append(text[place : match.start()])
                escape = _escape_at(text, match.start())
                place = match.start()
                if escape is None:
                    break
                out.append(escape[0])
                place += escape[1]
                continue
            out.append(text[place : match.end()])
            place = match.end()
            if match[0] == '"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if match[0] in "{[" else -1
                if not self._depth:
                    self._in_arguments = False
                    self.calls[-1].complete = True
        self.calls[-1].arguments += "".join(out)
        self._pending = text[place:]


def _escape_at(text: str, place: int) -> tuple[str, int] | None:
    """Return the escape sequence of JSON at `place` as the client gets it, and its length in `text`.

    A lone surrogate becomes U+FFFD. The result is None if the end of the sequence has not arrived.
    """
    kind = text[place + 1 : place + 2]
    if kind != "u":
        return (text[place : place + 2], 2) if kind else None
    if len(text) < place + 6:
        return None
    if not _LONE.match(text, place):
        return text[place : place + 6], 6
    if pair := _HIGH.match(text, place):
        return pair[0], 12
    # The second half of a pair may still come behind a first one.
    following = text[place + 6 : place + 12]
    if text[place + 3] in "89abAB" and len(following) < 6 and "\\u".startswith(following[:2]):
        return None
    return "\\ufffd", 6


class TaggedCallParts:
    """Reader of one call whose arguments are text in tags.

    A string is passed on piece by piece as the model writes it, any other value when it is complete.
    """

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        self._parameters = parameters
        self.calls: list[BegunCall] = []
        self._pending = ""
        self._place = "head"
        self._properties: Mapping[str, Any] = {}
        self._types = SchemaTypes({})
        self._seen: set[str] = set()
        self._key = ""
        self._is_text = self._at_start = False

    def feed(self, text: str) -> None:
        """Read more of the text, and add the name and the arguments in it to `calls`."""
        self._pending += text
        while self._pending and self._place != "over":
            before, place = self._pending, self._place
            getattr(self, f"_read_{self._place}")()
            if (self._pending, self._place) == (before, place):
                return

    def _write(self, text: str) -> None:
        self.calls[-1].arguments += text

    def _read_head(self) -> None:
        tag = FUNCTION_TAG.match(self._pending)
        if tag is None:
            if len(self._pending) > MOST_HEAD:
                self._place = "over"
            return
        name = tag[1].strip()
        if name not in self._parameters:
            self._place = "over"
            return
        schema = self._parameters[name]
        root = schema if isinstance(schema, Mapping) else {}
        declared = root.get("properties")
        self._types = SchemaTypes(root)
        self._properties = declared if isinstance(declared, Mapping) else {}
        self.calls.append(BegunCall(name))
        self._write("{")
        self._pending, self._place = self._pending[tag.end() :], "between"

    def _read_between(self) -> None:
        if tag := PARAMETER_TAG.match(self._pending):
            self._key = tag[1].strip()
            if self._key in self._seen:
                self._place = "over"
                return
            self._is_text = self._types.of(self._properties.get(self._key)) == {"string"}
            comma = ", " if self._seen else ""
            self._seen.add(self._key)
            self._write(
                f"{comma}{json.dumps(self._key, ensure_ascii=False)}: " + ('"' if self._is_text else "")
            )
            self._pending, self._place, self._at_start = self._pending[tag.end() :], "value", True
            return
        rest = self._pending.lstrip()
        if rest.startswith(FUNCTION_END):
            self._write("}")
            self.calls[-1].complete = True
            self._place = "over"
        elif rest and not (FUNCTION_END.startswith(rest) or _may_be_parameter(rest)):
            self._place = "over"

    def _read_value(self) -> None:
        text = self._pending
        if self._at_start and self._is_text:
            if not text:
                return
            # The line end behind the tag is no part of the value.
            text, self._at_start = text.removeprefix("\n"), False
            if text != self._pending and not text:
                self._pending = ""
                return
        end = self._end_of_value(text)
        if isinstance(end, tuple):
            value, self._pending = text[: end[0]], text[end[1] :]
            if self._is_text:
                self._write(_escaped(value.removesuffix("\n")) + '"')
            else:
                types = self._types.of(self._properties.get(self._key))
                inner = value.removeprefix("\n").removesuffix("\n")
                self._write(strict_json.encode(typed_value(inner, types)))
            self._place = "between"
            return
        if self._is_text:
            self._write(_escaped(text[:end]))
            text = text[end:]
        self._pending = text

    def _end_of_value(self, text: str) -> tuple[int, int] | int:
        """Return the end of the current value, and the end of its end tag.

        If the value has not ended, return the length of the text that certainly belongs to it.
        """
        place = 0
        while True:
            end = text.find(PARAMETER_END, place)
            line = self._missing_parameter(text[: end + 1] if end >= 0 else text)
            if line is not None and place == 0:
                return line, line
            if end < 0:
                return _certain(text)
            behind = text[end + len(PARAMETER_END) :]
            rest = behind.lstrip()
            if PARAMETER_TAG.match(behind) or rest.startswith(FUNCTION_END):
                return end, end + len(PARAMETER_END)
            if not rest or FUNCTION_END.startswith(rest) or _may_be_parameter(rest):
                return len(text[:end].removesuffix("\n"))
            place = end + len(PARAMETER_END)

    def _missing_parameter(self, text: str) -> int | None:
        """Return where another parameter begins a line before the current one has ended; None = nowhere."""
        for tag in _PARAMETER_LINE.finditer(text):
            key = tag[1].strip()
            if key in self._properties and key not in self._seen:
                return tag.start() + 1
        return None


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _may_be_parameter(text: str) -> bool:
    """Return whether `text` may be the beginning of the tag of a parameter."""
    begin = "<parameter="
    return begin.startswith(text) or (text.startswith(begin) and not set("<>\n") & set(text[len(begin) :]))


def _certain(text: str) -> int:
    """Return the length of the text that belongs to a value whatever follows: the rest may begin a tag."""
    tail = text.rfind("\n<parameter=")
    if tail >= 0 and "\n" not in text[tail + 1 :]:
        return tail
    for marker in (f"\n{PARAMETER_END}", "\n<parameter=", PARAMETER_END):
        for length in range(min(len(marker) - 1, len(text)), 0, -1):
            if marker.startswith(text[-length:]):
                return len(text) - length
    return len(text)
