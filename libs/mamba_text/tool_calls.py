"""`ToolCallReader`: parses tool calls from the output of a model, in the format of its chat template. Pure.

Used by the API process, one reader per choice. A call is emitted when it is complete; text that may be the
beginning of a call is held back. A malformed call is emitted as text, so nothing the model wrote is lost.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mamba_text import strict_json
from mamba_text.call_parts import CallPart, CallPartsReader, JsonCallParts, TaggedCallParts, json_head
from mamba_text.markers import JsonDepth, JsonPlace, unfinished
from mamba_text.tagged_call import FUNCTION, FUNCTION_END, read_tagged_call

MOST_NAME = 256
"""Longest name of a function in a tag, in characters."""
MOST_ENDS = 256
"""Largest number of end markers inside one call. Each needs a check of the whole call: without a bound an
answer that only consists of markers would keep the reader busy for minutes."""
_NO_ARGUMENTS = frozenset(("name", "id", "type"))
"""Keys of a call that has no arguments."""


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """The format of calls: `begin`, a call or a list of calls, `end`.

    A call is JSON, `{"name": …, "arguments": …}`, or tagged.
    """

    begin: str
    end: str
    """End marker; empty = the calls are the last part of an answer."""
    listed: bool = False
    """Whether the model writes a list between the markers; otherwise each call has its own markers."""
    tagged: bool = False
    """Whether a call is tags with its arguments as text instead of JSON, one call between the markers."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that mark a call; a tokenizer may have them as special tokens."""
        return (self.begin, self.end) if self.end else (self.begin,)


NEMOTRON = ToolCallFormat("<TOOLCALL>", "</TOOLCALL>", listed=True)
GRANITE = ToolCallFormat("<|tool_call|>", "", listed=True)
HERMES = ToolCallFormat("<tool_call>", "</tool_call>")
"""Format of Hermes, Qwen and Granite 4."""
TAGGED = ToolCallFormat("<tool_call>", "</tool_call>", tagged=True)
"""Format of Nemotron 3, Qwen3.5 and later, and Qwen's coders."""


def format_of(template: str) -> ToolCallFormat | None:
    """Return the format that a chat template's source teaches; None = no known format."""
    if FUNCTION in template:
        return TAGGED if TAGGED.begin in template else None
    return next((form for form in (NEMOTRON, GRANITE, HERMES) if form.begin in template), None)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One complete call of a function."""

    name: str
    arguments: str
    """JSON of an object, as the model wrote it or encoded again."""


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """The text that became final in one step, and the calls that are complete."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    parts: tuple[CallPart, ...] = ()
    """The calls in parts, as the model writes them; complete calls have parts, too."""


@dataclass(slots=True)
class ToolCallReader:
    """Finds tool calls in the output for one choice; drops calls beyond `max_calls` (None = no limit)."""

    form: ToolCallFormat
    max_calls: int | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """JSON schema of each function's arguments, by which the types of tagged arguments are determined."""
    offered_alone: bool = False
    """Whether a call of a function that is not in `parameters` counts as text."""
    streams: bool = False
    """Whether parts of calls are returned before the calls are complete. A call that breaks off then stays a
    call, since a part of it was returned."""
    calls: int = 0
    """Number of calls read so far."""
    _pending: str = ""
    """Outside a call: white space and text that may be the beginning of a call."""
    _call_parts: list[str] | None = None
    """Inside a call: its pieces so far; None = outside."""
    _begin: str = ""
    """The marker with which the current call began."""
    _separator: str = ""
    """White space before the begin marker of the current call."""
    _tail: str = ""
    """Last characters of the pieces of the current call, in which a split end marker may begin."""
    _place: JsonPlace = field(default_factory=JsonPlace)
    """Whether the current call is within a string of its JSON."""
    _bare_depth: JsonDepth = field(default_factory=JsonDepth)
    """Search for the end of a call without markers."""
    _ends: int = 0
    """Number of end markers inside the current call."""
    _lone_end: bool = False
    """Whether a call without a begin marker has just ended: its end marker may follow, and is no text."""
    _out: list[str] = field(default_factory=list)
    _complete_calls: list[ToolCall] = field(default_factory=list)
    _begun: CallPartsReader | None = None
    """Reader of the parts of the current call; None = outside."""
    _sent: list[int] = field(default_factory=list)
    """Number of characters of the arguments that were returned of each call of `_begun`."""
    _parts: list[CallPart] = field(default_factory=list)
    _wrote: bool = False
    """Whether there was text or a call: what follows cannot be a call without markers."""

    def feed(self, text: str, *, last: bool) -> ParsedOutput:
        """Read more of the answer; return the text that became final, and the calls or parts of calls.

        `last` says that nothing follows.
        """
        self._read(text)
        if last:
            self._finish()
        read = ParsedOutput("".join(self._out), tuple(self._complete_calls), tuple(self._parts))
        self._out, self._complete_calls, self._parts = [], [], []
        return read

    def _read(self, text: str) -> None:
        rest = text
        while rest:
            rest = self._read_text(rest) if self._call_parts is None else self._read_call(rest)

    @property
    def _begins(self) -> tuple[str, ...]:
        """Texts with which a call may begin.

        They include the tag of a function, since models forget the marker in front of it.
        """
        if self.form.tagged and self.parameters:
            return self.form.begin, FUNCTION
        return (self.form.begin,)

    def _read_text(self, text: str) -> str:
        """Read text up to the beginning of a call; return the rest, which is not read yet."""
        whole = self._pending + text
        self._pending = ""
        if self._lone_end:
            behind = self._without_lone_end(whole)
            if behind is None:
                return ""
            whole = behind
        if (
            self.parameters
            and not (self.form.tagged or self._wrote)
            and (rest := self._bare(whole)) is not None
        ):
            return rest
        places = [(place, marker) for marker in self._begins if (place := whole.find(marker)) >= 0]
        if places:
            place, self._begin = min(places)
            before = whole[:place]
            # White space that separates a call is not text.
            self._emit_text(content := before.rstrip())
            self._separator = before[len(content) :]
            self._open_call()
            return whole[place + len(self._begin) :]
        certain = len(whole) - max(unfinished(whole, marker) for marker in self._begins)
        certain = len(whole[:certain].rstrip())
        self._emit_text(whole[:certain])
        self._pending = whole[certain:]
        return ""

    def _open_call(self) -> None:
        self._call_parts, self._tail, self._place, self._ends = [], "", JsonPlace(), 0
        self._begun = TaggedCallParts(self.parameters) if self.form.tagged else JsonCallParts(self.parameters)
        self._sent = []
        if self._begin == FUNCTION:
            self._begun.feed(FUNCTION)

    def _bare(self, whole: str) -> str | None:
        """Begin a call without markers if `whole` is JSON that calls an offered function; return its text.

        The result is None if the text is no such call, and "", with the text held back, while that is not
        clear.
        """
        written = whole.lstrip()
        if not written or written[0] not in ("[{" if self.form.listed else "{"):
            return None
        head = json_head(written.lstrip("[ \t\r\n"))
        if head is None:
            self._pending = whole
            return ""
        if not isinstance(head, tuple) or head[0] not in self.parameters:
            return None
        self._begin, self._separator = "", whole[: len(whole) - len(written)]
        self._open_call()
        self._bare_depth = JsonDepth()
        return written

    def _without_lone_end(self, whole: str) -> str | None:
        """Return the text behind the end marker of a call that had no begin marker.

        The end marker may be missing; then all of the text is returned. None = the marker may still come.
        """
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
        """End marker of the current call; "" = the call ends with its JSON, or with the answer."""
        if not self._begin:
            return ""
        return FUNCTION_END if self._begin == FUNCTION else self.form.end

    def _read_call(self, text: str) -> str:
        """Read a call up to its end; return the rest, which is not read yet.

        A marker in a string is no end.
        """
        assert self._call_parts is not None
        end = self._end
        if not self._begin:
            return self._read_bare_call(text)
        if not end:
            self._call_parts.append(text)
            self._feed_begun(text)
            return ""
        seen = self._tail + text
        new, cut = len(self._tail), 0
        place = seen.find(end)
        while place >= 0:
            stop = place + len(end)
            self._call_parts.append(seen[new:stop])
            self._feed_begun(seen[new:stop])
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
        self._feed_begun(seen[new:])
        self._tail = seen[max(cut, len(seen) - len(end) + 1) :]
        if self._begin == FUNCTION and self._is_unknown():
            written, self._call_parts = "".join(self._call_parts), None
            self._emit_text(f"{self._separator}{FUNCTION}")
            return written
        return ""

    def _read_bare_call(self, text: str) -> str:
        """Read a call without markers up to the end of its JSON; return the rest, which is not read yet."""
        assert self._call_parts is not None
        end = self._bare_depth.end(text)
        part = text if end is None else text[:end]
        self._call_parts.append(part)
        self._feed_begun(part)
        if end is None:
            return ""
        written = "".join(self._call_parts)
        if (calls := self._calls(written)) is None:
            self._give_up(written)
        else:
            self._close(calls)
        return text[end:]

    def _feed_begun(self, text: str) -> None:
        """Pass `text`, the next characters of the current call, to `_begun`, the reader of its parts.

        If `streams` is set, the new names and characters of arguments are added to `_parts`, which `feed`
        returns.
        """
        assert self._begun is not None
        self._begun.feed(text)
        if not self.streams:
            return
        for number, call in enumerate(self._begun.calls):
            if self.max_calls is not None and self.calls + number >= self.max_calls:
                return
            begins = number == len(self._sent)
            if begins:
                self._sent.append(0)
            if begins or len(call.arguments) > self._sent[number]:
                new = call.arguments[self._sent[number] :]
                self._parts.append(CallPart(call.name if begins else "", new))
                self._sent[number] = len(call.arguments)

    def _may_end(self, body: str) -> bool:
        """Return whether an end marker behind `body` can be the end of the call."""
        if self.form.tagged:
            return self._begin == FUNCTION or body.rstrip().endswith(FUNCTION_END) or FUNCTION not in body
        return not self._place.is_string(body)

    def _is_unknown(self) -> bool:
        """Return whether a call without a begin marker already names a function that is not offered."""
        assert self._call_parts is not None
        name, end_of_name, _ = "".join(self._call_parts)[:MOST_NAME].partition(">")
        return name.strip() not in self.parameters if end_of_name else len(name) >= MOST_NAME

    def _close(self, calls: list[ToolCall]) -> None:
        self._call_parts, self._tail = None, ""
        self._lone_end = self._begin == FUNCTION
        self._wrote = True
        assert self._begun is not None
        for number, call in enumerate(calls):
            if self.max_calls is not None and self.calls >= self.max_calls:
                break
            self.calls += 1
            if number < len(self._begun.calls) and (begun := self._begun.calls[number]).complete:
                # JSON comes as the model wrote it.
                call = ToolCall(call.name, begun.arguments)
            if number < len(self._sent):
                sent = self._begun.calls[number].arguments
                if not call.arguments.startswith(sent):
                    # The text is ambiguous, and a part of one reading was returned.
                    call = ToolCall(call.name, sent + "}")
                self._parts.append(CallPart("", call.arguments[len(sent) :], last=True))
            else:
                self._parts.append(CallPart(call.name, call.arguments, last=True))
            self._complete_calls.append(call)
        self._begun = None

    def _give_up(self, written: str) -> None:
        """End a possible call that turned out to be no call, and emit its text.

        If a part of it was returned as a call, it stays a call, which ends here.
        """
        self._call_parts, self._tail = None, ""
        if self._sent:
            assert self._begun is not None
            self.calls += len(self._sent)
            self._complete_calls += [ToolCall(call.name, call.arguments) for call in self._begun.calls]
            self._parts.append(CallPart("", "", last=True))
            self._begun, self._sent = None, []
            return
        self._emit_text(f"{self._separator}{self._begin}{written}")

    def _calls(self, written: str) -> list[ToolCall] | None:
        """Return the tool calls that the text `written` consists of.

        The result is None if the text is not a list of calls. It is also None if a call names a function that
        the request does not offer, where the reader accepts only the functions that are offered.
        """
        try:
            if not self.form.tagged:
                calls = _calls(written)
            else:
                tagged = read_tagged_call(written, self.parameters)
                calls = None if tagged is None else [ToolCall(*tagged)]
        except (ValueError, RecursionError):
            return None
        if calls is None:
            return None
        any_function = not (self.offered_alone or self._begin == FUNCTION)
        return calls if any_function or all(call.name in self.parameters for call in calls) else None

    def _finish(self) -> None:
        while self._call_parts is not None:
            written = "".join(self._call_parts)
            # A model may end its answer in place of the end marker.
            calls = None if self._begin in (FUNCTION, "") else self._calls(written)
            if calls is not None:
                self._close(calls)
                break
            if self._sent:
                self._give_up("")
                break
            # No end followed: the text behind the first marker is read again.
            head, end, rest = written.partition(self._end) if self._end else (written, "", "")
            self._wrote = True
            self._give_up(head + end)
            self._read(rest)
        if self._pending.strip() or not self.calls:
            self._emit_text(self._pending)
        self._pending = ""

    def _emit_text(self, text: str) -> None:
        if text:
            self._out.append(text)
            self._wrote = self._wrote or not text.isspace()


def _calls(written: str) -> list[ToolCall] | None:
    """Return the calls in JSON that a model wrote: one, several in a row, or a list; None = no calls."""
    values = strict_json.parse_several(written)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    calls = [call for value in values if (call := _call(value)) is not None]
    return calls if calls and len(calls) == len(values) else None


def _call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str) or not name:
        return None
    if "arguments" in value:
        arguments = value["arguments"]
    elif "parameters" in value:
        arguments = value["parameters"]
    elif value.keys() <= _NO_ARGUMENTS:
        arguments = {}
    else:
        return None  # the arguments are in keys that mean something else here

    if arguments is None:
        arguments = {}
    if isinstance(arguments, dict):
        arguments = strict_json.encode(arguments)
    if not isinstance(arguments, str) or not strict_json.is_text(name + arguments):
        return None
    return ToolCall(name, _sendable(arguments))


def _sendable(arguments: str) -> str:
    """Return arguments that the model wrote as a text, in which U+FFFD replaces lone surrogates."""
    if "\\ud" in arguments.lower():
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        if not strict_json.is_text(json.dumps(decoded, ensure_ascii=False)):
            return strict_json.encode(decoded)

    return arguments
