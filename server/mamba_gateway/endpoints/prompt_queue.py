"""The prompt tokens that one engine has yet to compute: as it reported, and as this gateway knows since.

A report is older than the moment it is read at: what was sent within `LAG` before it counts beside it. Then
some tokens may count twice, for as long as that; counted not at all they would draw the next request, too.
"""

from dataclasses import dataclass

LAG = 1.0
"""Seconds: an engine counts twice a second, and its answer takes a while."""


@dataclass(slots=True)
class _QueuedPrompt:
    tokens: float
    at: float
    reported: bool = False
    """Sent so long before the last report that it is part of it."""


class PromptQueue:
    """One engine's. A ticket stands for one request; times are monotonic seconds."""

    def __init__(self) -> None:
        self._sent: dict[int, _QueuedPrompt] = {}
        self._reported: float | None = None
        self._answered = 0.0
        """Of what was reported, since then."""
        self._unreported = 0.0
        """Of what was sent and not answered: what no report counts yet."""

    def send(self, ticket: int, tokens: float, now: float) -> None:
        """A request goes to the engine that has so many to compute."""
        self._sent[ticket] = _QueuedPrompt(tokens, now)
        self._unreported += tokens

    def answer(self, ticket: int) -> None:
        """It has begun to answer, or never will. Unknown tickets are ignored."""
        sent = self._sent.pop(ticket, None)
        if sent is None:
            return
        if sent.reported:
            self._answered += sent.tokens
        else:
            # What adding and taking off leaves of rounding goes with the last of them.
            self._unreported = self._unreported - sent.tokens if self._sent else 0.0

    def report(self, tokens: float | None, now: float) -> None:
        """What the engine says; None = it says nothing."""
        self._reported, self._answered = tokens, 0.0
        for sent in self._sent.values():
            sent.reported = tokens is not None and sent.at < now - LAG
        self._unreported = sum(sent.tokens for sent in self._sent.values() if not sent.reported)

    @property
    def tokens(self) -> float:
        """To be computed now, about."""
        return max(0.0, self._unreported) + max(0.0, (self._reported or 0.0) - self._answered)
