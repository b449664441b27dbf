"""How many tokens an answer used, read from its bytes as they pass: the engine's own `usage`, else a count.

Nothing is parsed but that object. An engine of ours is asked with `USAGE_HEADER` to end each stream with it
in a comment, which clients skip; from others, and of answers that broke off, each event counts as one token.
"""

import re

# In the text of an answer the quotes are escaped: only the engine's own words look like this.
_TOTAL = re.compile(rb'"usage"\s*:\s*\{(?:[^{}]|\{[^{}]*\})*?"total_tokens"\s*:\s*(\d{1,12})[\s,}]')
_MARK = b'"usage"'
_LONGEST = 2048
"""Bytes of a usage object that may come in pieces."""
_EVENT = b"data: {"


class UsageMeter:
    """Of one answer."""

    def __init__(self) -> None:
        self._total: int | None = None
        self._events = 0
        self._tail = b""
        self._fed = False

    def feed(self, chunk: bytes) -> None:
        """Bytes of an answer with status 200."""
        self._fed = True
        self._events += chunk.count(_EVENT)
        data = self._tail + chunk if self._tail else chunk
        at = data.rfind(_MARK)
        if at < 0:
            # No mark goes on behind a line's end.
            self._tail = b"" if data.endswith(b"\n") else data[1 - len(_MARK) :]
            return
        if found := _TOTAL.search(data, at):
            self._total, self._tail = int(found[1]), b""
        else:
            self._tail = data[at:] if len(data) - at <= _LONGEST else data[1 - len(_MARK) :]

    def used(self, prompt_tokens: float) -> float:
        """Tokens of prompt and answer; of a prompt that was computed at least its own."""
        if self._total is not None:
            return self._total
        return prompt_tokens + self._events if self._fed else 0.0
