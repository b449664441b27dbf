"""Reasoning of a model before its answer: its markers, and `ReasoningReader`, which finds its end. Pure.

The API process has one reader for each choice. Text that may be a marker, or white space next to one, is held
back until that is certain.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from mamba_text.markers import unfinished
from mamba_text.tool_calls import ToolCallReader


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning: `begin`, the reasoning, `end`, the answer."""

    begin: str
    end: str

    @property
    def markers(self) -> tuple[str, str]:
        """Both markers; a tokenizer may have them as special tokens."""
        return self.begin, self.end


THINK = ReasoningFormat("<think>", "</think>")
"""Format of Nemotron Nano v2, Nemotron 3, Qwen3-Next, Qwen3.5 and later, and Falcon-H1R."""


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """Return the format that a chat template's source uses; None = no known format."""
    return THINK if THINK.end in template else None


class ReasoningStart(Enum):
    """Whether the model's answer begins within the reasoning, by the end of the prompt."""

    OPEN = auto()
    """The prompt has the begin marker: the answer begins with reasoning."""
    CLOSED = auto()
    """The prompt has the end marker: the answer has no reasoning."""
    UNSAID = auto()
    """The model writes the begin marker itself, or does not reason."""

    @classmethod
    def of(cls, form: ReasoningFormat, opening: str) -> "ReasoningStart":
        """Return the state after `opening`, the beginning of the answer in the prompt."""
        begin, end = opening.rfind(form.begin), opening.rfind(form.end)
        if begin == end:  # neither is there
            return cls.UNSAID
        return cls.OPEN if begin > end else cls.CLOSED


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    """The text that became final in one step, divided into reasoning and answer."""

    reasoning: str = ""
    answer: str = ""


class _Place(Enum):
    BEFORE = auto()
    """Before the first text, which shows whether the model reasons."""
    INSIDE = auto()
    BEHIND = auto()
    """After the end marker, before the answer's first character."""
    ANSWER = auto()


_FIRST = {
    ReasoningStart.OPEN: _Place.INSIDE,
    ReasoningStart.CLOSED: _Place.ANSWER,
    ReasoningStart.UNSAID: _Place.BEFORE,
}


class ReasoningReader:
    """Divides the output for one choice into reasoning and answer, as it arrives.

    White space around the markers belongs to neither of the two.
    """

    def __init__(
        self, form: ReasoningFormat, start: ReasoningStart, calls: Callable[[], ToolCallReader] | None = None
    ) -> None:
        """Prepare to read an answer whose prompt has left the reasoning in the state `start`.

        `calls` returns a new reader of tool calls, for a model that calls a tool without ending its
        reasoning; None = the request offers no tools.
        """
        self._form = form
        self._calls = calls
        self._call_begin = None if calls is None else calls().form.begin
        self._probe: ToolCallReader | None = None
        """Reader of a possible call within the reasoning; None = there is none now."""
        self._probed = ""
        """Text that the probe has read."""
        self._place = _FIRST[start]
        self._pending = ""
        """Text that is held back."""
        self._repeatable = start is ReasoningStart.OPEN
        """Whether the model may repeat the begin marker of its prompt."""
        self._begun = False
        """Whether a part of the reasoning was returned."""
        self._token_tail: str | None = "" if start is not ReasoningStart.CLOSED else None
        """Last characters of the counted tokens, in which a split end marker may begin; None = the marker has
        come."""
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """Number of tokens of the reasoning and its markers so far."""
        return 0 if self._place is _Place.BEFORE else self._tokens

    def feed(self, text: str, tokens: Iterable[str], *, last: bool) -> ParsedReasoning:
        """Read more of the answer, and return the text that is final.

        `text` is the new visible text. `tokens` are the texts of the new tokens, which are only counted.
        `last` says that nothing follows.
        """
        self._count(tokens)
        reasoning = ""
        rest, self._pending = self._pending + text, ""
        if self._place is _Place.BEFORE:
            rest = self._find_begin(rest, last=last)
        if self._place is _Place.INSIDE:
            reasoning, rest = self._find_end(rest, last=last)
        if self._place is _Place.BEHIND:
            rest = rest.lstrip()
            if rest:
                self._place = _Place.ANSWER
        return ParsedReasoning(reasoning, rest)

    def _find_begin(self, text: str, *, last: bool) -> str:
        """Return the text behind the begin marker, or all of it if it does not begin with the marker.

        If the text may still become the marker, it is held back, and the result is "".
        """
        written = text.lstrip()
        if written.startswith(self._form.begin):
            self._place = _Place.INSIDE
            return written[len(self._form.begin) :]
        if not last and self._form.begin.startswith(written):
            self._pending = text
            return ""
        self._place = _Place.ANSWER
        self._tokens, self._token_tail = 0, None
        return text

    def _find_end(self, text: str, *, last: bool) -> tuple[str, str]:
        """Return the reasoning in `text` that is final, and the text behind the end marker.

        Text that may still become a marker or a call is held back.
        """
        if not self._begun:
            text = text.lstrip()
            if self._repeatable:
                if text and not last and self._form.begin.startswith(text) and text != self._form.begin:
                    self._pending = text
                    return "", ""
                # A model may repeat the marker that its prompt has.
                self._repeatable = not text
                text = text.removeprefix(self._form.begin).lstrip()
        thought, end, rest = text.partition(self._form.end)
        call_parts = None
        if self._call_begin is not None and not end:
            call_parts = self._find_call(thought, self._call_begin, last=last)
        if call_parts is not None:
            thought, call = call_parts
            if call is None:  # the text may become a call
                kept = thought.rstrip()
                self._pending, thought = text[len(kept) :], kept
            else:
                self._place, rest = _Place.ANSWER, call
                self._token_tail = None
        elif end:
            self._place = _Place.BEHIND
        elif not last:
            markers = (self._form.end, self._call_begin or self._form.end)
            certain = thought[
                : len(thought) - max(unfinished(thought, marker) for marker in markers)
            ].rstrip()
            self._pending, thought = thought[len(certain) :], certain
        thought = thought.rstrip()
        self._begun = self._begun or bool(thought)
        return thought, rest

    def _find_call(self, thought: str, begin: str, *, last: bool) -> tuple[str, str | None] | None:
        """Return the reasoning before a tool call, and the text from the call on; None = there is no call.

        The second value is None while the reasoning may still continue after the call. `begin` is the marker
        with which a call begins.
        """
        place = thought.find(begin)
        while place >= 0:
            reader = self._probe_at(thought[place:])
            output = reader.feed(thought[place + len(self._probed) :], last=last)
            self._probed = thought[place:]
            if reader.calls or not (output.text or last):
                return thought[:place], thought[place:] if last else None
            self._probe, self._probed = None, ""
            place = thought.find(begin, place + len(begin))
        return None

    def _probe_at(self, text: str) -> ToolCallReader:
        """Return the reader of a call that begins `text`, which may have read some of it already."""
        assert self._calls is not None
        if self._probe is None or not text.startswith(self._probed):
            self._probe, self._probed = self._calls(), ""
        return self._probe

    def _count(self, tokens: Iterable[str]) -> None:
        if self._token_tail is None:
            return
        for text in tokens:
            self._tokens += 1
            window = self._token_tail + text
            if self._form.end in window:
                self._token_tail = None
                return
            self._token_tail = window[-len(self._form.end) + 1 :]
