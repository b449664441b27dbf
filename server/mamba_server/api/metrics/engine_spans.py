"""`EngineSpans`: builds the engine's spans of a request from the timings in its deltas (the engine's clock).

The engine process has no exporter: it reports when each prefill piece ran, and the API process creates the
spans. `ActiveRequest` uses it; a request that is not recorded costs nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from opentelemetry.trace import SpanKind

from mamba_server.wire import AddRequest, Arrival, AuditSpan, PrefillTiming, SequenceDelta
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import RequestTrace, SpanNote
from mamba_telemetry.tracing import Tracing


@dataclass(slots=True)
class _SequenceProgress:
    """How far one sequence is, as its spans show it."""

    idle_since: float
    """End of the sequence's last computation so far; at first the time of submission."""
    prefill_started: bool = False
    preemptions: int = 0
    first_at: float = 0.0
    """Time of the first token, in seconds of the engine's clock; 0 = none yet."""
    last_at: float = 0.0
    """Time of the last token."""
    tokens: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """Depths of the checkpoints that decode steps wrote."""
    finished: bool = False


class EngineSpans:
    """Records the trace spans of one HTTP request.

    There is one for each of its prompts, and below it one for each sequence.
    """

    def __init__(self, trace: RequestTrace, requests: Sequence[AddRequest]) -> None:
        self._trace = trace
        self._requests: dict[str, SpanNote] = {}
        self._sequences: dict[tuple[str, int], _SequenceProgress] = {}
        for request in requests if trace.recording else ():
            now = time.monotonic()
            span = trace.begin(names.ENGINE, at=now)
            span.set(names.INPUT_TOKENS, len(request.token_ids))
            span.set(names.REQUEST_MAX_TOKENS, request.params.max_tokens)
            span.set(names.REQUEST_CHOICES, request.n if request.n > 1 else None)
            self._requests[request.request_id] = span
            for index in range(request.n):
                self._sequences[request.request_id, index] = _SequenceProgress(now)

    def traceparent(self, request: AddRequest) -> str:
        """Return the `traceparent` that is sent to the engine; "" = the request is not recorded."""
        span = self._requests.get(request.request_id)
        return "" if span is None else self._trace.traceparent(span)

    def record(self, delta: SequenceDelta, tokens: int) -> None:
        """Record a delta whose first `tokens` tokens belong to the answer."""
        progress = self._sequences.get((delta.request_id, delta.index))
        if progress is None or progress.finished:
            return
        span = self._requests[delta.request_id]
        for arrival in delta.timeline.arrivals if delta.timeline is not None else ():
            self._arrival(span, progress, arrival)
        for piece in delta.timeline.pieces if delta.timeline is not None else ():
            self._piece(span, delta.index, progress, piece)
        if delta.timeline is not None:
            progress.checkpoints += delta.timeline.checkpoints
        if delta.cached_tokens:
            span.set(names.CACHED_TOKENS, delta.cached_tokens)
        now = delta.at or time.monotonic()
        if tokens:
            if not progress.tokens:
                progress.first_at = delta.first_at or now
                span.event(names.FIRST_TOKEN, progress.first_at, delta.index)
            progress.tokens += tokens
            progress.idle_since = progress.last_at = now

    def finished(self, request_id: str, index: int, reason: str) -> None:
        """Record the end of a sequence."""
        progress = self._sequences.get((request_id, index))
        if progress is None or progress.finished:
            return
        progress.finished = True
        trace, span = self._trace, self._requests[request_id]
        now = time.monotonic()
        if not progress.prefill_started and not progress.tokens:
            _sequence(trace.begin(names.ENGINE_QUEUE, span, at=progress.idle_since), index).finish(now)
        if progress.tokens:
            decode = _sequence(trace.begin(names.ENGINE_DECODE, span, at=progress.first_at), index)
            decode.set(names.STEPS, progress.tokens - 1)
            decode.set(names.PREEMPTIONS, progress.preemptions)
            decode.set(names.CHECKPOINTS, progress.checkpoints or None)
            decode.finish(progress.last_at)
        reasons = span.attributes.get(names.FINISH_REASONS, ())
        assert isinstance(reasons, tuple)
        span.set(names.FINISH_REASONS, (*reasons, reason))
        siblings = [other for (name, _), other in self._sequences.items() if name == request_id]
        span.set(names.OUTPUT_TOKENS, sum(sibling.tokens for sibling in siblings))
        if all(sibling.finished for sibling in siblings):
            span.finish(max((sibling.last_at for sibling in siblings), default=0.0) or now)

    def failed(self, code: str) -> None:
        """Fail the spans that have not ended, because the request failed (`code` "" = a client's error)."""
        for span in self._requests.values():
            reasons = span.attributes.get(names.FINISH_REASONS, ())
            if code and (not span.end or (isinstance(reasons, tuple) and "error" in reasons)):
                span.fail(code)

    def _arrival(self, span: SpanNote, progress: _SequenceProgress, arrival: Arrival) -> None:
        note = self._trace.begin(names.ENGINE_FETCH, span, at=arrival.began)
        for name, value in (
            (names.TRANSFER_SOURCE, arrival.source),
            (names.TRANSFER_OUTCOME, arrival.outcome),
            (names.TRANSFER_BYTES, arrival.size),
            (names.TOKENS_TO, arrival.depth),
        ):
            note.set(name, value)
        note.finish(arrival.ended)
        progress.idle_since = max(progress.idle_since, arrival.ended)

    def _piece(self, span: SpanNote, index: int, progress: _SequenceProgress, piece: PrefillTiming) -> None:
        trace = self._trace
        wait_span = "" if progress.prefill_started else names.ENGINE_QUEUE
        if piece.preemptions > progress.preemptions:
            wait_span = names.ENGINE_PREEMPTED
        if wait_span:
            _sequence(trace.begin(wait_span, span, at=progress.idle_since), index).finish(piece.began)
        note = _sequence(trace.begin(names.ENGINE_PREFILL, span, at=piece.began), index)
        for name, value in (
            (names.TOKENS_FROM, piece.start),
            (names.TOKENS_TO, piece.stop),
            (names.STEP, piece.step),
            (names.STEPS, piece.steps),
            (names.BATCH_SEQUENCES, piece.sequences),
            (names.BATCH_TOKENS, piece.tokens),
            (names.CHECKPOINTS, piece.checkpoints or None),
        ):
            note.set(name, value)
        note.links = piece.beside
        note.finish(piece.ended)
        progress.prefill_started, progress.preemptions, progress.idle_since = (
            True,
            piece.preemptions,
            piece.ended,
        )


def export_audits(tracing: Tracing, audits: Sequence[AuditSpan]) -> None:
    """Export the audits of traced requests, whose own spans have been sent before.

    An audit is kept if its request was sampled, and in any case if it found a wrong answer.
    """
    for audit in audits:
        trace = tracing.begin(names.ENGINE_AUDIT, {"traceparent": audit.traceparent}, at=audit.began)
        note = _sequence(trace.root, audit.sequence)
        note.kind = SpanKind.INTERNAL
        for name, value in (
            (names.AUDIT_OUTCOME, audit.outcome),
            (names.AUDIT_REASON, audit.reason or None),
            (names.AUDIT_DISTANCE, audit.distance),
            (names.TOKENS_TO, audit.tokens),
        ):
            note.set(name, value)
        if audit.outcome == "diverged":
            note.fail(audit.outcome)
        trace.slow_after = 0.0
        note.finish(audit.ended)
        tracing.end(trace)


def _sequence(note: SpanNote, index: int) -> SpanNote:
    note.set(names.SEQUENCE, index or None)
    return note
