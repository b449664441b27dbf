"""Reads what an answer says of its tokens, from the last bytes of a JSON body or of its events."""

import json
import re
from dataclasses import dataclass
from typing import Any

LAST_BYTES = 16 * 1024
"""The usage stands at the end of an answer."""
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')
"""As a key: inside a text its quotes would be escaped."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """Of the prompt; None = the engine does not say."""


class UsageReader:
    """Of one answer, as its bytes pass."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes seen."""
        self._last = b""

    def feed(self, chunk: bytes) -> None:
        """The next bytes."""
        self.size += len(chunk)
        self._last = (self._last + chunk)[-LAST_BYTES:]

    def usage(self) -> Usage | None:
        """What was said last; None where nothing was."""
        for found in reversed(list(_USAGE.finditer(self._last))):
            try:
                said, _ = json.JSONDecoder().raw_decode(self._last[found.end() :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            return _usage(said)
        return None


def _usage(said: dict[str, Any]) -> Usage | None:
    prompt, completion = said.get("prompt_tokens"), said.get("completion_tokens", 0)
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    details = said.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, completion, cached if isinstance(cached, int) else None)
