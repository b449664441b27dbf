"""How many tokens an answer used, read from its bytes as they pass: the engine's own `usage`, else a count.

Nothing is parsed but that object. An engine of ours is asked with `USAGE_HEADER` to end each stream with it
in a comment, which clients skip; from others, and of answers that broke off, each event counts as one token.
The relay's answers and those that a proxy shows the endpoint picker are read alike.
"""

import re
from typing import Annotated

import msgspec

# In the text of an answer the quotes are escaped: only the engine's own words look like this.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_MARK = b'"usage"'
_LONGEST = 2048
"""Bytes of a usage object that may come in pieces."""
_EVENT = b"data: {"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer, as the engine says them."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    total_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Of the prompt; None = the engine does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @property
    def total(self) -> int:
        """Of prompt and answer."""
        return self.total_tokens or self.prompt_tokens + self.completion_tokens


_decode = msgspec.json.Decoder(Usage).decode


class UsageMeter:
    """Of one answer."""

    __slots__ = ("_events", "_tail", "size", "usage")

    def __init__(self) -> None:
        self.size = 0
        """Bytes seen."""
        self.usage: Usage | None = None
        """What was said last; None where nothing was."""
        self._events = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the answer, not compressed."""
        self.size += len(chunk)
        self._events += chunk.count(_EVENT)
        data = self._tail + chunk if self._tail else chunk
        at = data.rfind(_MARK)
        if at < 0:
            # No mark goes on behind a line's end.
            self._tail = b"" if data.endswith(b"\n") else data[1 - len(_MARK) :]
            return
        if found := _USAGE.search(data, at):
            self._tail = b""
            try:
                self.usage = _decode(found[1])
            except msgspec.DecodeError:
                return  # some other thing of this name
        else:
            self._tail = data[at:] if len(data) - at <= _LONGEST else data[1 - len(_MARK) :]

    def used(self, prompt_tokens: float) -> float:
        """Tokens of prompt and answer; of a prompt that was computed at least its own."""
        if self.usage is not None:
            return self.usage.total
        return prompt_tokens + self._events if self.size else 0.0
