"""The number of tokens of an answer, from its bytes as they pass: the engine's own `usage`, else a count.

Only that object is parsed. The header `USAGE_HEADER` makes an engine of ours end each stream with the object
in a comment, which clients skip; of other engines, and of answers that broke off, each event counts as one
token. Used for the answers of the relay and for those that a proxy passes to the endpoint picker.
"""

import re
from typing import Annotated

import msgspec

# In the text of an answer the quotes are escaped: only the engine's own words look like this.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{(?:[^{}]|\{[^{}]*\})*\})')
_MARK = b'"usage"'
_LONGEST = 2048
"""Largest number of bytes of a usage object that comes in pieces."""
_EVENT = b"data: {"
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**12)]


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one answer, as the engine reports them."""

    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    total_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the engine resumed; None = the engine does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @property
    def total(self) -> int:
        """Tokens of prompt and answer."""
        return self.total_tokens or self.prompt_tokens + self.completion_tokens


_decode = msgspec.json.Decoder(Usage).decode


class UsageMeter:
    """The token count of one answer."""

    __slots__ = ("_events", "_tail", "size", "usage")

    def __init__(self) -> None:
        self.size = 0
        """Number of bytes of the answer so far."""
        self.usage: Usage | None = None
        """The last usage that the answer contained; None = it contained none."""
        self._events = 0
        self._tail = b""

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the answer, not compressed."""
        self.size += len(chunk)
        self._events += chunk.count(_EVENT)
        data = self._tail + chunk if self._tail else chunk
        mark = data.rfind(_MARK)
        if mark < 0:
            # No mark goes on behind a line's end.
            self._tail = b"" if data.endswith(b"\n") else data[1 - len(_MARK) :]
            return
        if match := _USAGE.search(data, mark):
            self._tail = b""
            try:
                self.usage = _decode(match[1])
            except msgspec.DecodeError:
                return  # some other thing of this name
        else:
            self._tail = data[mark:] if len(data) - mark <= _LONGEST else data[1 - len(_MARK) :]

    def used(self, prompt_tokens: float) -> float:
        """Return the tokens of prompt and answer; without a reported usage by the number of events."""
        if self.usage is not None:
            return self.usage.total
        return prompt_tokens + self._events if self.size else 0.0
