"""The prompt tokens that one engine has yet to compute: its report, corrected by this gateway's requests.

A report is older than the moment at which it is read: prompts sent within `LAG` before it count in addition.
Some tokens may then count twice for that long; if they did not count at all, they would attract the next
request, too. Used by the pool. Pure.
"""

import msgspec

LAG = 1.0
"""Largest age of a report in seconds: an engine counts twice a second, and its answer takes a while."""


class _QueuedPrompt(msgspec.Struct, eq=False):
    tokens: float
    at: float
    reported: bool = False
    """Whether the last report includes the prompt, which was sent long enough before it."""


class PromptQueue:
    """The queued prompts of one engine. A ticket stands for one request; times are monotonic seconds."""

    def __init__(self) -> None:
        self._sent: dict[int, _QueuedPrompt] = {}
        self._reported: float | None = None
        self._answered = 0.0
        """Tokens of reported prompts that were answered since the report."""
        self._unreported = 0.0
        """Tokens of prompts that were sent and not answered, and that no report includes yet."""

    def send(self, ticket: int, tokens: float, now: float) -> None:
        """Record that a request with this number of tokens to compute goes to the engine."""
        self._sent[ticket] = _QueuedPrompt(tokens, now)
        self._unreported += tokens

    def answer(self, ticket: int) -> None:
        """Record that the engine has begun to answer, or never will. Unknown tickets are ignored."""
        sent = self._sent.pop(ticket, None)
        if sent is None:
            return
        if sent.reported:
            self._answered += sent.tokens
        else:
            # Rounding errors of adding and subtracting end with the last prompt.
            self._unreported = self._unreported - sent.tokens if self._sent else 0.0

    def report(self, tokens: float | None, now: float) -> None:
        """Take the number of tokens that the engine reports; None = it reports none."""
        self._reported, self._answered = tokens, 0.0
        for sent in self._sent.values():
            sent.reported = tokens is not None and sent.at < now - LAG
        self._unreported = sum(sent.tokens for sent in self._sent.values() if not sent.reported)

    @property
    def tokens(self) -> float:
        """Estimated number of tokens to be computed now."""
        return max(0.0, self._unreported) + max(0.0, (self._reported or 0.0) - self._answered)
