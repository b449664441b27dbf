"""`ToolCallReader`: parses tool calls from the output of a model, in the format of its chat template. Pure.

Used by the API process, one reader per choice. A call is emitted when it is complete; text that may be the
beginning of a call is held back. A malformed call is emitted as text, so nothing the model wrote is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mamba_text import strict_json
from mamba_text.markers import unfinished
from mamba_text.tagged_call import FUNCTION, read_tagged_call


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
    calls: int = 0
    """How many were read."""
    _pending: str = ""
    """Outside a call: white space and text that may be the beginning of a call."""
    _call_parts: list[str] | None = None
    """Inside a call: the pieces of it so far; None = outside."""
    _separator: str = ""
    """White space before the begin marker of the current call."""
    _tail: str = ""
    """The last characters of those pieces, in which a split end marker may begin."""
    _out: list[str] = field(default_factory=list)
    _found: list[ToolCall] = field(default_factory=list)

    def feed(self, text: str, *, last: bool) -> ParsedOutput:
        """More of the answer; `last`: nothing follows."""
        rest = text
        while rest:
            rest = self._read_text(rest) if self._call_parts is None else self._read_call(rest)
        if last:
            self._finish()
        read = ParsedOutput("".join(self._out), tuple(self._found))
        self._out, self._found = [], []
        return read

    def _read_text(self, text: str) -> str:
        """Read text up to the begin marker of a call; returns the unread rest."""
        whole = self._pending + text
        self._pending = ""
        before, begin, after = whole.partition(self.form.begin)
        if begin:
            # White space that sets a call apart is no text.
            self._emit_text(said := before.rstrip())
            self._separator = before[len(said) :]
            self._call_parts = []
            return after
        certain = len(whole) - unfinished(whole, self.form.begin)
        certain = len(whole[:certain].rstrip())
        self._emit_text(whole[:certain])
        self._pending = whole[certain:]
        return ""

    def _read_call(self, text: str) -> str:
        """Read a call up to its end marker; returns the unread rest."""
        assert self._call_parts is not None
        if not self.form.end:
            self._call_parts.append(text)
            return ""
        seen = self._tail + text
        place = seen.find(self.form.end)
        if place < 0:
            self._call_parts.append(text)
            self._tail = seen[max(0, len(seen) - len(self.form.end) + 1) :]
            return ""
        written = "".join([*self._call_parts, text])
        stop = len(written) - len(seen) + place
        self._close(written[:stop], self.form.end)
        return seen[place + len(self.form.end) :]

    def _close(self, written: str, end: str) -> None:
        self._call_parts, self._tail = None, ""
        calls = self._calls(written)
        if calls is None:
            self._emit_text(f"{self._separator}{self.form.begin}{written}{end}")
            return
        for call in calls:
            if self.max_calls is None or self.calls < self.max_calls:
                self.calls += 1
                self._found.append(call)

    def _calls(self, written: str) -> list[ToolCall] | None:
        """None = it is none of calls."""
        try:
            if not self.form.tagged:
                return _calls(strict_json.parse(written))
            read = read_tagged_call(written, self.parameters)
        except (ValueError, RecursionError):
            return None
        return None if read is None else [ToolCall(*read)]

    def _finish(self) -> None:
        if self._call_parts is not None:
            # A model may end its answer in place of the end marker.
            self._close("".join(self._call_parts), "")
        if self._pending.strip() or not self.calls:
            self._emit_text(self._pending)
        self._pending = ""

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(text)


def _calls(found: Any) -> list[ToolCall] | None:
    """The calls in the JSON that a model wrote; None = it is none of calls."""
    calls = [_call(each) for each in (found if isinstance(found, list) else [found])]
    known = [each for each in calls if each is not None]
    return known if known and len(known) == len(calls) else None


def _call(found: Any) -> ToolCall | None:
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str) or not name:
        return None
    arguments = found.get("arguments", {})
    if arguments is None:
        arguments = {}
    if isinstance(arguments, dict):
        arguments = strict_json.encode(arguments)
    if not isinstance(arguments, str) or not strict_json.is_text(name + arguments):
        return None
    return ToolCall(name, arguments)
