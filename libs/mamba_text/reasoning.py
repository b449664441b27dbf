"""What a model thinks before it answers: how its chat template marks it, and `ReasoningReader`, which parts
it from the answer. Pure.

Used by the API process, one reader per choice. Of a text that comes in pieces, what may be a marker, or white
space beside one, is held back until it is certain.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from mamba_text.markers import unfinished
from mamba_text.tool_calls import ToolCallReader


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """`begin`, what the model thinks, `end`, the answer."""

    begin: str
    end: str

    @property
    def markers(self) -> tuple[str, str]:
        """Both; a tokenizer may have them as special tokens."""
        return self.begin, self.end


THINK = ReasoningFormat("<think>", "</think>")
"""Of Nemotron Nano v2, Nemotron 3, Qwen3-Next and Falcon-H1R."""


def reasoning_format_of(template: str) -> ReasoningFormat | None:
    """The format that a chat template's source knows; None = none."""
    return THINK if THINK.end in template else None


class ReasoningStart(Enum):
    """What a prompt says of the thoughts of its answer."""

    OPEN = auto()
    """It has their begin marker: the answer begins with thoughts."""
    CLOSED = auto()
    """It has their end marker: there are none."""
    UNSAID = auto()
    """The model writes the begin marker itself, or does not think."""

    @classmethod
    def of(cls, form: ReasoningFormat, opening: str) -> "ReasoningStart":
        """`opening`: what the prompt has of the answer."""
        begin, end = opening.rfind(form.begin), opening.rfind(form.end)
        if begin == end:  # neither is there
            return cls.UNSAID
        return cls.OPEN if begin > end else cls.CLOSED


@dataclass(frozen=True, slots=True)
class ParsedReasoning:
    """Final text of one step, of each kind."""

    reasoning: str = ""
    answer: str = ""


class _Place(Enum):
    BEFORE = auto()
    """Nothing has come that says whether the model thinks."""
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
    """Reads one choice. White space around the markers belongs to neither text."""

    def __init__(
        self, form: ReasoningFormat, start: ReasoningStart, calls: Callable[[], ToolCallReader] | None = None
    ) -> None:
        """`calls`: makes what reads calls of offered tools: a model may call without ending its thoughts."""
        self._form = form
        self._calls = calls
        self._call_begin = None if calls is None else calls().form.begin
        self._probe: ToolCallReader | None = None
        """Reads what may be a call within the thoughts; None = there is none now."""
        self._probed = ""
        """What it has read."""
        self._place = _FIRST[start]
        self._pending = ""
        """What is held back."""
        self._repeatable = start is ReasoningStart.OPEN
        """The begin marker may be the first that the model writes."""
        self._begun = False
        """Some of the reasoning was returned."""
        self._token_tail: str | None = "" if start is not ReasoningStart.CLOSED else None
        """Last characters of the counted tokens, in which a split end marker may begin; None = it came."""
        self._tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens of the thoughts and their markers so far."""
        return 0 if self._place is _Place.BEFORE else self._tokens

    def feed(self, text: str, tokens: Iterable[str], *, last: bool) -> ParsedReasoning:
        """More of the answer: its visible text, and the texts of its tokens, which are only counted. `last`:
        nothing follows."""
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
        """The text behind the marker, or all of it if there is none."""
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
        """The reasoning, and the text behind the marker."""
        if not self._begun:
            text = text.lstrip()
            if self._repeatable:
                if text and not last and self._form.begin.startswith(text) and text != self._form.begin:
                    self._pending = text
                    return "", ""
                # A model may write once more what its prompt has.
                self._repeatable = not text
                text = text.removeprefix(self._form.begin).lstrip()
        thought, end, rest = text.partition(self._form.end)
        called = None
        if self._call_begin is not None and not end:
            called = self._find_call(thought, self._call_begin, last=last)
        if called is not None:
            thought, call = called
            if call is None:  # it may become one
                kept = thought.rstrip()
                self._pending, thought = text[len(kept) :], kept
            else:
                self._place, rest = _Place.ANSWER, call
                self._token_tail = None
        elif end:
            self._place = _Place.BEHIND
        elif not last:
            markers = (self._form.end, self._call_begin or self._form.end)
            certain = thought[: len(thought) - max(unfinished(thought, each) for each in markers)].rstrip()
            self._pending, thought = thought[len(certain) :], certain
        thought = thought.rstrip()
        self._begun = self._begun or bool(thought)
        return thought, rest

    def _find_call(self, thought: str, begin: str, *, last: bool) -> tuple[str, str | None] | None:
        """The thought in front of a call, and the text from the call on, None while thoughts may still end
        behind it; None = there is no call. `begin`: of calls."""
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
        """The reader of what begins there, which may have read some of it already."""
        assert self._calls is not None
        if self._probe is None or not text.startswith(self._probed):
            self._probe, self._probed = self._calls(), ""
        return self._probe

    def _count(self, tokens: Iterable[str]) -> None:
        if self._token_tail is None:
            return
        for text in tokens:
            self._tokens += 1
            seen = self._token_tail + text
            if self._form.end in seen:
                self._token_tail = None
                return
            self._token_tail = seen[-len(self._form.end) + 1 :]
