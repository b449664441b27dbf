"""`Inbox`: holds the engine's deltas for one HTTP request until the task that serves it takes them.

`engine_client` fills it, `active_request` empties it. Deltas of one sequence that pile up behind a slow
client are joined, so memory is bounded by the tokens the request may generate, not by the number of messages.
"""

import asyncio

import msgspec

from mamba_edge.errors import ApiError
from mamba_server.wire import SequenceDelta, SequenceTimeline


def join(first: SequenceDelta, second: SequenceDelta) -> SequenceDelta:
    """Join two successive deltas of one sequence."""
    logprobs = first.logprobs
    if second.logprobs is not None:
        logprobs = [*(logprobs or ()), *second.logprobs]
    scores = first.prompt_logprobs
    if second.prompt_logprobs is not None:
        scores = [*(scores or ()), *second.prompt_logprobs]
    return msgspec.structs.replace(
        second,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
        cached_tokens=max(first.cached_tokens, second.cached_tokens),
        prompt_logprobs=scores,
        started=first.started or second.started,
        first_at=first.first_at or second.first_at,
        timeline=_join_timelines(first.timeline, second.timeline),
        explanation=first.explanation or second.explanation,
    )


def _join_timelines(
    first: SequenceTimeline | None, second: SequenceTimeline | None
) -> SequenceTimeline | None:
    if first is None or second is None:
        return first or second
    return SequenceTimeline(
        first.pieces + second.pieces, first.checkpoints + second.checkpoints, first.arrivals + second.arrivals
    )


class Inbox:
    """Queues what the engine sends for the sequences of one HTTP request; an error ends it."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], SequenceDelta] = {}
        self._error: ApiError | None = None
        self._filled = asyncio.Event()

    def put(self, delta: SequenceDelta) -> None:
        """Add a delta."""
        key = (delta.request_id, delta.index)
        before = self._waiting.get(key)
        self._waiting[key] = delta if before is None else join(before, delta)
        self._filled.set()

    def fail(self, error: ApiError) -> None:
        """End the request with an error. Waiting deltas are still handed out; the first error is kept."""
        self._error = self._error or error
        self._filled.set()

    async def take(self) -> list[SequenceDelta]:
        """Wait for at least one delta and take all. Raises the error once no deltas are left."""
        await self._filled.wait()
        self._filled.clear()
        deltas = list(self._waiting.values())
        self._waiting.clear()
        if self._error is not None:
            self._filled.set()
            if not deltas:
                raise self._error
        return deltas
