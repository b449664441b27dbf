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
"""How long the end of the process may wait for the last spans."""


class SpanFactory(Protocol):
    """Turns the notes of a request into spans."""

    def __call__(self, trace: RequestTrace, end: float, keep_reason: str) -> Sequence[ReadableSpan]: ...


@dataclass(slots=True)
class SpanCounts:
    """Spans so far, by what became of them."""

    sent: int = 0
    dropped: int = 0
    """No room: the receiver did not keep up."""
    failed: int = 0
    """The receiver did not take them."""


@dataclass(frozen=True, slots=True)
class _QueuedTrace:
    trace: RequestTrace
    end: float
    keep_reason: str


class SpanQueue:
    """Of one process. At most `most` spans wait; they go in batches of about `batch`, `delay` seconds after
    the first at the latest."""

    def __init__(
        self,
        exporter: SpanExporter,
        make: SpanFactory,
        *,
        most: int = 2048,
        batch: int = 512,
        delay: float = 5.0,
    ) -> None:
        self.counts = SpanCounts()
        self._exporter, self._make = exporter, make
        self._most, self._batch, self._delay = most, min(batch, most), delay
        self._traces: deque[_QueuedTrace] = deque()
        self._pending = 0
        """Spans that wait or are being sent."""
        self._changed = threading.Condition()
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._work, name="spans", daemon=True)
        self._thread.start()

    def offer(self, trace: RequestTrace, end: float, keep_reason: str) -> None:
        """Send the spans of a request that ended, if there is room. Never waits for the receiver."""
        size = len(trace.notes)
        with self._changed:
            if self._closing or self._pending + size > self._most:
                self.counts.dropped += size
                return
            self._traces.append(_QueuedTrace(trace, end, keep_reason))
            self._pending += size
            self._changed.notify()

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Send what waits, for so many seconds at most; what is left is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._exporter.shutdown()  # ends its wait between two tries

    def _work(self) -> None:
        while batch := self._next():
            self._send(batch)
        self._exporter.shutdown()

    def _next(self) -> list[_QueuedTrace]:
        """The next batch; empty at the end."""
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

    def _wait(self, what: Callable[[], bool], due: float | None = None) -> None:
        self._changed.wait_for(what, None if due is None else max(0.0, due - time.monotonic()))

    def _send(self, batch: list[_QueuedTrace]) -> None:
        size = sum(len(each.trace.notes) for each in batch)
        why, sent = "", False
        try:
            spans = [span for each in batch for span in self._make(each.trace, each.end, each.keep_reason)]
            sent = self._exporter.export(spans) is SpanExportResult.SUCCESS
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        with self._changed:
            self._pending -= size
            if sent:
                self.counts.sent += size
            else:
                self.counts.failed += size
        self._log_outcome(sent, why)

    def _log_outcome(self, sent: bool, error: str) -> None:
        # Once for each time that it begins to fail, and once when that is over.
        if sent is not self._failing:
            return
        self._failing = not sent
        if sent:
            counts = self.counts
            log.info("traces_exported_again", failed_spans=counts.failed, dropped_spans=counts.dropped)
        else:
            log.warning(
                "traces_not_exported",
                reason=error or "the receiver did not take them",
                remedy="see that endpoint and protocol are those of a collector that is reached from here",
            )
