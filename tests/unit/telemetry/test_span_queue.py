"""Spans that are kept go to the receiver if possible, and nobody waits for that."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from eventually import wait_until
from mamba_telemetry.request_trace import RequestTrace
from mamba_telemetry.span_maker import SpanMaker
from mamba_telemetry.span_queue import SpanQueue
from mamba_telemetry.trace_metrics import TraceMetrics
from mamba_telemetry.tracing import OFF, Tracing


class Receiver(SpanExporter):
    """Takes what it is given, or does what it is told."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.fails: Exception | None = None
        self.refuses = False
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.shut = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.open.wait()
        if self.fails:
            raise self.fails
        if self.refuses:
            return SpanExportResult.FAILURE
        self.batches.append([span.name for span in spans])
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.shut += 1
        self.open.set()

    @property
    def received(self) -> list[str]:
        return [name for batch in self.batches for name in batch]


@contextmanager
def queue_to(
    receiver: Receiver, *, most: int = 64, batch: int = 8, delay: float = 0.0
) -> Iterator[SpanQueue]:
    queue = SpanQueue(receiver, SpanMaker(Resource({})), capacity=most, batch=batch, delay=delay)
    try:
        yield queue
    finally:
        receiver.open.set()
        queue.close()


def request(name: str, spans: int = 1) -> RequestTrace:
    trace = RequestTrace(name, recording=True, sampled=True, begin=1.0)
    for _ in range(spans - 1):
        trace.begin("part")
    return trace


def test_every_span_goes_once_and_in_batches() -> None:
    receiver = Receiver()
    with queue_to(receiver) as queue:
        for number in range(20):
            queue.offer(request(f"r{number}", 3), 2.0, "sampled")
    assert [name for name in receiver.received if name != "part"] == [f"r{number}" for number in range(20)]
    assert max(map(len, receiver.batches)) <= 8
    assert (queue.counts.sent, queue.counts.dropped, queue.counts.failed) == (60, 0, 0)
    assert receiver.shut == 1


def test_beyond_the_bound_spans_are_dropped_and_counted() -> None:
    receiver = Receiver()
    receiver.open.clear()
    with queue_to(receiver, most=10) as queue:
        for number in range(8):
            queue.offer(request(f"r{number}", 3), 2.0, "sampled")
        assert queue.counts.dropped == 5 * 3
    assert (queue.counts.sent, queue.counts.dropped) == (9, 15)


@pytest.mark.parametrize("fails", [ConnectionRefusedError("nobody listens"), None], ids=["dead", "refusing"])
def test_a_receiver_that_fails_is_told_of_once_and_once_when_it_is_back(fails: Exception | None) -> None:
    receiver = Receiver()
    receiver.fails, receiver.refuses = fails, fails is None
    with capture_logs() as lines, queue_to(receiver, batch=1) as queue:
        for _ in range(5):
            queue.offer(request("lost"), 2.0, "sampled")
        wait_until(lambda: queue.counts.failed == 5, "five failures")
        receiver.fails, receiver.refuses = None, False
        for _ in range(5):
            queue.offer(request("found"), 2.0, "sampled")
    assert receiver.received == ["found"] * 5
    assert [(line["log_level"], line["event"]) for line in lines] == [
        ("warning", "traces_not_exported"),
        ("info", "traces_exported_again"),
    ]


def test_the_end_of_a_process_does_not_wait_for_a_receiver_that_hangs() -> None:
    receiver = Receiver()
    receiver.open.clear()
    queue = SpanQueue(receiver, SpanMaker(Resource({})), delay=0.0)
    queue.offer(request("held"), 2.0, "sampled")
    assert receiver.asked.wait(60)
    queue.close(0.01)
    assert receiver.shut >= 1
    queue.offer(request("late"), 2.0, "sampled")
    assert queue.counts.dropped == 1


def test_what_waits_for_company_goes_at_the_end() -> None:
    receiver = Receiver()
    with queue_to(receiver, delay=3600.0) as queue:
        queue.offer(request("alone"), 2.0, "sampled")
    assert receiver.received == ["alone"]


def test_what_became_of_spans_is_counted_for_scrapers() -> None:
    registry, receiver = CollectorRegistry(), Receiver()
    with queue_to(receiver) as queue:
        TraceMetrics(registry, Tracing(queue=queue))
        queue.offer(request("r", 3), 2.0, "sampled")
    name = "mambaserve_trace_spans_total"
    assert registry.get_sample_value(name, {"outcome": "sent"}) == 3
    assert registry.get_sample_value(name, {"outcome": "dropped"}) == 0


def test_without_tracing_there_is_nothing_to_count() -> None:
    registry = CollectorRegistry()
    TraceMetrics(registry, OFF)
    assert [family.samples for family in registry.collect()] == [[]]
