"""`ToolCallReader`: parses tool calls from the output of a model, in the format of its chat template. Pure.

Used by the API process, one reader per choice. A call is emitted when it is complete; text that may be the
beginning of a call is held back. A malformed call is emitted as text, so nothing the model wrote is lost.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mamba_text import strict_json
from mamba_text.json_place import JsonPlace
from mamba_text.markers import unfinished
from mamba_text.tagged_call import FUNCTION, FUNCTION_END, read_tagged_call

MOST_NAME = 256
"""Characters of a function's name in a tag."""
MOST_ENDS = 256
"""End markers that may stand in one call before its own: each costs a look at all of it, so that without a
bound an answer of nothing but markers would keep the reader busy for minutes."""
_NO_ARGUMENTS = frozenset(("name", "id", "type"))
"""Keys of a call that has no arguments."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """`begin`, a call or a list of calls, `end`. A call is JSON, `{"name": …, "arguments": …}`, or tagged."""

    begin: str
    end: str
    """Empty: the calls are the last of an answer."""
    listed: bool = False
    """The model writes a list between the markers; else each call has markers of its own."""
    tagged: bool = False
    """A call is no JSON, but tags with its arguments as text, one call between the markers."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that mark a call; a tokenizer may have them as special tokens."""
        return (self.begin, self.end) if self.end else (self.begin,)


NEMOTRON = ToolCallFormat("<TOOLCALL>", "</TOOLCALL>", listed=True)
GRANITE = ToolCallFormat("<|tool_call|>", "", listed=True)
HERMES = ToolCallFormat("<tool_call>", "</tool_call>")
"""Of Hermes, Qwen and Granite 4."""
TAGGED = ToolCallFormat("<tool_call>", "</tool_call>", tagged=True)
"""Of Nemotron 3 and Qwen's coders."""


def format_of(template: str) -> ToolCallFormat | None:
    """The format that a chat template's source teaches; None = none that is known."""
    if FUNCTION in template:
        return TAGGED if TAGGED.begin in template else None
    return next((each for each in (NEMOTRON, GRANITE, HERMES) if each.begin in template), None)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call."""

    name: str
    arguments: str
    """JSON of an object, as the model wrote it or encoded anew."""


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """Final text and complete calls of one step."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(slots=True)
class ToolCallReader:
    """Reads one choice incrementally. `max_calls`: further calls are dropped; None = no limit."""

    form: ToolCallFormat
    max_calls: int | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of each function the JSON schema of its arguments, by which tagged ones get their types."""
    offered_alone: bool = False
    """A call of a function that is not among them is none."""
    calls: int = 0
    """How many were read."""
    _pending: str = ""
    """Outside a call: white space and text that may be the beginning of a call."""
    _call_parts: list[str] | None = None
    """Inside a call: the pieces of it so far; None = outside."""
    _begin: str = ""
    """The marker with which the current call began."""
    _separator: str = ""
    """White space before the begin marker of the current call."""
    _tail: str = ""
    """The last characters of those pieces, in which a split end marker may begin."""
    _place: JsonPlace = field(default_factory=JsonPlace)
    """Whether the current call is within a string of its JSON."""
    _ends: int = 0
    """End markers that the current call went on behind."""
    _lone_end: bool = False
    """A call without a begin marker has just ended: its end marker may follow, and is no text."""
    _out: list[str] = field(default_factory=list)
    _found: list[ToolCall] = field(default_factory=list)

    def feed(self, text: str, *, last: bool) -> ParsedOutput:
        """More of the answer; `last`: nothing follows."""
        self._read(text)
        if last:
            self._finish()
        read = ParsedOutput("".join(self._out), tuple(self._found))
        self._out, self._found = [], []
        return read

    def _read(self, text: str) -> None:
        rest = text
        while rest:
            rest = self._read_text(rest) if self._call_parts is None else self._read_call(rest)

    @property
    def _begins(self) -> tuple[str, ...]:
        """What a call may begin with: models forget the marker in front of a tagged one."""
        if self.form.tagged and self.parameters:
            return self.form.begin, FUNCTION
        return (self.form.begin,)

    def _read_text(self, text: str) -> str:
        """Read text up to the begin of a call; returns the unread rest."""
        whole = self._pending + text
        self._pending = ""
        if self._lone_end:
            behind = self._without_lone_end(whole)
            if behind is None:
                return ""
            whole = behind
        places = [(place, each) for each in self._begins if (place := whole.find(each)) >= 0]
        if places:
            place, self._begin = min(places)
            before = whole[:place]
            # White space that sets a call apart is no text.
            self._emit_text(said := before.rstrip())
            self._separator = before[len(said) :]
            self._call_parts, self._tail, self._place, self._ends = [], "", JsonPlace(), 0
            return whole[place + len(self._begin) :]
        certain = len(whole) - max(unfinished(whole, each) for each in self._begins)
        certain = len(whole[:certain].rstrip())
        self._emit_text(whole[:certain])
        self._pending = whole[certain:]
        return ""

    def _without_lone_end(self, whole: str) -> str | None:
        """The text behind the end marker of a call that had no begin marker; None = it may still come."""
        written = whole.lstrip()
        if written and not self.form.end.startswith(written):
            self._lone_end = False
            return written.removeprefix(self.form.end) if written.startswith(self.form.end) else whole
        if written == self.form.end:
            self._lone_end = False
            return ""
        self._pending = whole
        return None

    @property
    def _end(self) -> str:
        """What the current call ends with."""
        return FUNCTION_END if self._begin == FUNCTION else self.form.end

    def _read_call(self, text: str) -> str:
        """Read a call up to its end; returns the unread rest. An end marker within a string is no end."""
        assert self._call_parts is not None
        end = self._end
        if not end:
            self._call_parts.append(text)
            return ""
        seen = self._tail + text
        new, cut = len(self._tail), 0
        place = seen.find(end)
        while place >= 0:
            stop = place + len(end)
            self._call_parts.append(seen[new:stop])
            self._tail, new, cut = "", stop, stop
            written = "".join(self._call_parts)
            self._call_parts = [written]
            if self._may_end(body := written[: -len(end)]):
                inner = FUNCTION + written if self._begin == FUNCTION else body
                if (calls := self._calls(inner)) is not None:
                    self._close(calls)
                    return seen[stop:]
                if not self.form.tagged:
                    self._give_up(written)
                    return seen[stop:]
            self._ends += 1
            if self._ends == MOST_ENDS:
                self._give_up(written)
                return seen[stop:]
            place = seen.find(end, stop)
        self._call_parts.append(seen[new:])
        self._tail = seen[max(cut, len(seen) - len(end) + 1) :]
        if self._begin == FUNCTION and self._is_unknown():
            written, self._call_parts = "".join(self._call_parts), None
            self._emit_text(f"{self._separator}{FUNCTION}")
            return written
        return ""

    def _may_end(self, body: str) -> bool:
        """Whether an end marker behind `body` can be the end of the call."""
        if self.form.tagged:
            return self._begin == FUNCTION or body.rstrip().endswith(FUNCTION_END) or FUNCTION not in body
        return not self._place.is_string(body)

    def _is_unknown(self) -> bool:
        """Whether what began as a call without a marker is one of no function that is offered."""
        assert self._call_parts is not None
        name, found, _ = "".join(self._call_parts)[:MOST_NAME].partition(">")
        return name.strip() not in self.parameters if found else len(name) >= MOST_NAME

    def _close(self, calls: list[ToolCall]) -> None:
        self._call_parts, self._tail = None, ""
        self._lone_end = self._begin == FUNCTION
        for call in calls:
            if self.max_calls is None or self.calls < self.max_calls:
                self.calls += 1
                self._found.append(call)

    def _give_up(self, written: str) -> None:
        """What was read is no call, but text."""
        self._call_parts, self._tail = None, ""
        self._emit_text(f"{self._separator}{self._begin}{written}")

    def _calls(self, written: str) -> list[ToolCall] | None:
        """None = it is none of calls."""
        try:
            if not self.form.tagged:
                found = _calls(written)
            else:
                read = read_tagged_call(written, self.parameters)
                found = None if read is None else [ToolCall(*read)]
        except (ValueError, RecursionError):
            return None
        if found is None:
            return None
        known = not (self.offered_alone or self._begin == FUNCTION)
        return found if known or all(each.name in self.parameters for each in found) else None

    def _finish(self) -> None:
        while self._call_parts is not None:
            written = "".join(self._call_parts)
            # A model may end its answer in place of the end marker.
            calls = None if self._begin == FUNCTION else self._calls(written)
            if calls is not None:
                self._close(calls)
                break
            # Nothing that followed was an end: what stands behind the first marker is read by itself.
            head, end, rest = written.partition(self._end) if self._end else (written, "", "")
            self._give_up(head + end)
            self._read(rest)
        if self._pending.strip() or not self.calls:
            self._emit_text(self._pending)
        self._pending = ""

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(text)


def _calls(written: str) -> list[ToolCall] | None:
    """The calls in the JSON that a model wrote: one, several behind each other, or a list; None = it is none
    of calls."""
    found = strict_json.parse_several(written)
    if len(found) == 1 and isinstance(found[0], list):
        found = found[0]
    calls = [_call(each) for each in found]
    known = [each for each in calls if each is not None]
    return known if known and len(known) == len(calls) else None


def _call(found: Any) -> ToolCall | None:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str) or not name:
        return None
    if "arguments" in found:
        arguments = found["arguments"]
    elif "parameters" in found:
        arguments = found["parameters"]
    elif found.keys() <= _NO_ARGUMENTS:
        arguments = {}
    else:
        return None  # what it is to be called with stands in keys that mean something else here
    if arguments is None:
        arguments = {}
    if isinstance(arguments, dict):
        arguments = strict_json.encode(arguments)
    if not isinstance(arguments, str) or not strict_json.is_text(name + arguments):
        return None
    return ToolCall(name, _sendable(arguments))


def _sendable(arguments: str) -> str:
    """Arguments that the model wrote as a text, without halves of characters in its escapes."""
    if "\\ud" in arguments.lower():
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if not strict_json.is_text(json.dumps(value, ensure_ascii=False)):
            return strict_json.encode(value)
    return arguments
