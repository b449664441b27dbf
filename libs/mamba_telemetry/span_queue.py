"""`SpanQueue`: exports kept traces from a thread of its own, so that a failing collector costs only spans.

Unlike the batch processor of the SDK it counts lost spans, logs once per outage instead of each failure, ends
within two seconds instead of thirty, and starts no thread in a child between fork and exec.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from mamba_telemetry.logs import get_logger
from mamba_telemetry.request_trace import RequestTrace

log = get_logger(__name__)

CLOSE_SECONDS = 2.0
"""Maximum time in seconds that the end of the process waits for the last spans."""


class SpanFactory(Protocol):
    """A function that turns the notes of a request into spans."""

    def __call__(self, trace: RequestTrace, end: float, keep_reason: str) -> Sequence[ReadableSpan]: ...


@dataclass(slots=True)
class SpanCounts:
    """Number of spans so far, by what became of them on the way to the receiver."""

    sent: int = 0
    dropped: int = 0
    """Spans for which there was no room, because the receiver did not keep up."""
    failed: int = 0
    """Spans that the receiver did not accept."""


@dataclass(frozen=True, slots=True)
class _QueuedTrace:
    trace: RequestTrace
    end: float
    """Time of the trace's end, by its own clock in seconds."""
    keep_reason: str
    """Why the trace is kept: sampled, failed or slow."""


class SpanQueue:
    """Queue of spans of one process.

    At most `capacity` spans wait. They are sent in batches of about `batch`, at the latest `delay` seconds
    after the first span.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        make: SpanFactory,
        *,
        capacity: int = 2048,
        batch: int = 512,
        delay: float = 5.0,
    ) -> None:
        self.counts = SpanCounts()
        self._exporter, self._make = exporter, make
        self._capacity, self._batch, self._delay = capacity, min(batch, capacity), delay
        self._traces: deque[_QueuedTrace] = deque()
        self._pending = 0
        """Number of spans that wait or are being sent."""
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def offer(self, trace: RequestTrace, end: float, keep_reason: str) -> None:
        """Queue the spans of a finished request if there is room. Never waits for the receiver."""
        size = len(trace.notes)
        with self._changed:
            if self._closing or self._pending + size > self._capacity:
                self.counts.dropped += size
                return
            self._traces.append(_QueuedTrace(trace, end, keep_reason))
            self._pending += size
            self._changed.notify()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Send the waiting spans for at most `timeout` seconds; the rest is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._exporter.shutdown()  # ends its wait between two attempts

    def _work(self) -> None:
        while batch := self._next():
            self._send(batch)
        self._exporter.shutdown()

    def _next(self) -> list[_QueuedTrace]:
        """Wait for the next batch and return it; empty once the queue is closed and no trace is left."""
        with self._changed:
            self._wait(lambda: bool(self._traces) or self._closing)
            due = time.monotonic() + self._delay
            self._wait(lambda: self._pending >= self._batch or self._closing, due)
            batch: list[_QueuedTrace] = []
            size = 0
            while self._traces and (not batch or size + len(self._traces[0].trace.notes) <= self._batch):
                batch.append(self._traces.popleft())
                size += len(batch[-1].trace.notes)
            return batch

    def _wait(self, condition: Callable[[], bool], due: float | None = None) -> None:
        self._changed.wait_for(condition, None if due is None else max(0.0, due - time.monotonic()))

    def _send(self, batch: list[_QueuedTrace]) -> None:
        size = sum(len(item.trace.notes) for item in batch)
        problem, sent = "", False
        try:
            spans = [span for item in batch for span in self._make(item.trace, item.end, item.keep_reason)]
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        with self._changed:
            self._pending -= size
            if sent:
                self.counts.sent += size
            else:
                self.counts.failed += size
        self._log_outcome(sent, problem)

    def _log_outcome(self, sent: bool, error: str) -> None:
        # One line when exports begin to fail, and one when they succeed again.
        if sent is not self._failing:
            return
        self._failing = not sent
        if sent:
            counts = self.counts
            log.info("traces_exported_again", failed_spans=counts.failed, dropped_spans=counts.dropped)
        else:
            log.warning(
                "traces_not_exported",
                reason=error or "the receiver did not accept them",
                remedy="check that endpoint and protocol belong to a collector that this process can reach",
            )
