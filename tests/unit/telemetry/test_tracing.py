"""Which requests' spans are kept, and what those say."""

import random
from random import Random

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from kept_spans import SAMPLED, UNSAMPLED, Hand, KeptSpans, parents, tracing_to
from mamba_edge.errors import InvalidRequest, NotReady
from mamba_telemetry import conventions as names
from mamba_telemetry.request_trace import MOST_SPANS, UNTRACED
from mamba_telemetry.tracing import OFF


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(5)


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.01, 10, 30), (0.0, 0, 0), (1.0, 2000, 2000)])
def test_the_share_that_is_asked_for_is_kept(ratio: float, least: int, most: int) -> None:
    kept = KeptSpans()
    tracing = tracing_to(kept, ratio=ratio)
    for _ in range(2000):
        tracing.end(tracing.begin("POST /x", {}, at=1.0))
    assert least <= len(kept.requests) <= most


def test_processes_agree_on_a_request_without_speaking() -> None:
    """Gateway, API and one more: all or none keep it, at any shares of their own."""
    kept = [KeptSpans() for _ in range(3)]
    tracings = [tracing_to(each, ratio=ratio) for each, ratio in zip(kept, (0.2, 1.0, 0.0), strict=True)]
    for _ in range(200):
        headers: dict[str, str] = {}
        for tracing in tracings:
            trace = tracing.begin("POST /x", headers, at=1.0)
            headers = {"traceparent": trace.traceparent()}
            tracing.end(trace)
    traces = [{spans[0].context.trace_id for spans in each.requests} for each in kept]
    assert traces[0] == traces[1] == traces[2]
    assert 20 <= len(traces[0]) <= 60


@pytest.mark.parametrize(("header", "count"), [(SAMPLED, 1), (UNSAMPLED, 0)])
def test_a_client_decides_for_its_own_request(header: str, count: int) -> None:
    kept = KeptSpans()
    tracing = tracing_to(kept, ratio=0.5)
    tracing.end(tracing.begin("POST /x", {"traceparent": header, "tracestate": "vendor=1"}, at=1.0))
    assert len(kept.requests) == count
    for span in kept.spans:
        assert f"{span.context.trace_id:032x}" == "a" * 32
        assert span.parent is not None
        assert (f"{span.parent.span_id:016x}", span.parent.trace_state.get("vendor")) == ("b" * 16, "1")


def test_what_failed_is_kept_whatever_the_share() -> None:
    kept = KeptSpans()
    tracing = tracing_to(kept, ratio=0.0)
    for error in (NotReady("n"), InvalidRequest("i"), ValueError("v"), None):
        trace = tracing.begin("POST /x", {}, at=1.0)
        try:
            with trace.span("part"):
                if error:
                    raise error
        except Exception:
            pass
        tracing.end(trace)
    codes = [span.attributes[names.ERROR_TYPE] for span in kept.named("part") if span.attributes]
    assert codes == ["not_ready", "ValueError"]
    assert all(span.status.status_code is StatusCode.ERROR for span in kept.named("part"))
    assert [span.attributes[names.KEPT] for span in kept.named("POST /x") if span.attributes] == [
        "failed"
    ] * 2


@pytest.mark.parametrize(
    ("slow_after", "answered", "end", "why"),
    [
        (10.0, 9.0, 500.0, None),  # a long answer is not a slow one
        (10.0, 11.0, 12.0, "slow"),
        (10.0, None, 11.0, "slow"),
        (10.0, None, 9.0, None),
        (0.0, 400.0, 500.0, None),
    ],
)
def test_what_was_slow_to_its_first_byte_is_kept(
    slow_after: float, answered: float | None, end: float, why: str | None
) -> None:
    kept, hand = KeptSpans(), Hand(0.0)
    tracing = tracing_to(kept, ratio=0.0, slow_after=slow_after, clock=hand)
    trace = tracing.begin("POST /x", {}, at=hand.now)
    trace.root.begin = 0.0
    trace.answered_at = answered
    hand.now = end
    tracing.end(trace)
    assert [span.attributes[names.KEPT] for span in kept.spans if span.attributes] == ([why] if why else [])


def test_spans_have_the_times_parents_and_words_that_were_noted() -> None:
    kept, hand = KeptSpans(), Hand()
    tracing = tracing_to(kept, clock=hand)
    trace = tracing.begin("POST /x", {}, at=hand.now)
    outer = trace.begin("outer", kind=SpanKind.CLIENT)
    hand.now += 1
    inner = trace.begin("inner", outer, at=100.25)
    inner.set("a", 1)
    inner.set("none", None)
    inner.event("moment", 100.5, 2)
    inner.links = (SAMPLED, "nonsense")
    inner.finish(100.75)
    inner.finish(200.0)
    hand.now += 1
    tracing.end(trace)
    assert parents(kept.spans) == {"POST /x": "", "outer": "POST /x", "inner": "outer"}
    root, made, part = kept.spans
    assert (root.kind, made.kind, part.kind) == (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.INTERNAL)
    assert None not in (root.start_time, root.end_time, part.start_time, part.end_time)
    assert round((root.end_time - root.start_time) / 1e9, 3) == 2.0
    assert made.end_time == root.end_time  # what lasts still ends with the request
    assert round((part.start_time - root.start_time) / 1e9, 3) == 0.25
    assert round((part.end_time - part.start_time) / 1e9, 3) == 0.5
    assert part.attributes == {"a": 1}
    [event] = part.events
    assert (event.name, event.attributes) == ("moment", {names.SEQUENCE: 2})
    [link] = part.links
    assert f"{link.context.span_id:016x}" == "b" * 16


def test_what_is_handed_on_names_the_span_that_waits() -> None:
    trace = tracing_to(KeptSpans()).begin("POST /x", {}, at=1.0)
    note = trace.begin("attempt")
    assert trace.traceparent(note) == f"00-{trace.trace_id:032x}-{note.span_id:016x}-01"
    assert trace.traceparent() == f"00-{trace.trace_id:032x}-{trace.root.span_id:016x}-01"


def test_a_request_has_so_many_spans_and_no_more() -> None:
    kept = KeptSpans()
    tracing = tracing_to(kept)
    trace = tracing.begin("POST /x", {}, at=1.0)
    for _ in range(MOST_SPANS + 9):
        note = trace.begin("part")
        trace.begin("below", note).fail("unheard")
    tracing.end(trace)
    [root] = kept.named("POST /x")
    assert len(kept.spans) == MOST_SPANS
    assert root.attributes
    assert root.attributes[names.SPANS_LEFT_OUT] == 2 * (MOST_SPANS + 9) + 1 - MOST_SPANS


@pytest.mark.parametrize(
    ("header", "passed"), [(SAMPLED, SAMPLED), (UNSAMPLED, UNSAMPLED), ("", ""), ("x", "")]
)
def test_off_a_callers_trace_goes_on_and_nothing_is_noted(header: str, passed: str) -> None:
    trace = OFF.begin("POST /x", {"traceparent": header} if header else {}, at=1.0)
    with trace.span("part") as part:
        part.set("a", 1)
        part.fail("b")
    assert (trace.notes, trace.failed, trace.exemplar()) == ([], False, None)
    assert trace.traceparent(part) == passed
    OFF.end(trace)


def test_no_request_leaves_anything_in_what_stands_for_none() -> None:
    note = UNTRACED.begin("part")
    note.set("a", 1)
    note.event("b", 1.0)
    note.fail("c")
    UNTRACED.end(note)
    assert (note.attributes, note.events, note.error, note.end) == ({}, [], "", 0.0)


def test_a_measurement_points_to_spans_that_are_sent() -> None:
    hand = Hand()
    tracing = tracing_to(KeptSpans(), ratio=0.0, slow_after=10.0, clock=hand)
    trace = tracing.begin("POST /x", {}, at=hand.now)
    assert trace.exemplar() is None
    hand.now += 11
    assert trace.exemplar() == {"trace_id": f"{trace.trace_id:032x}"}
    sampled = tracing.begin("POST /x", {"traceparent": SAMPLED}, at=hand.now)
    assert sampled.exemplar() == {"trace_id": "a" * 32}


def test_random_orders_of_beginnings_and_ends_make_one_tree() -> None:
    rng = Random(3)
    for _ in range(50):
        kept, hand = KeptSpans(), Hand()
        tracing = tracing_to(kept, clock=hand)
        trace = tracing.begin("POST /x", {}, at=hand.now)
        notes = [trace.root]
        for _ in range(rng.randrange(1, 30)):
            hand.now += rng.random()
            notes.append(trace.begin("part", rng.choice(notes)))
            if rng.random() < 0.5:
                trace.end(rng.choice(notes))
        tracing.end(trace)
        ids = {span.context.span_id for span in kept.spans}
        assert len(ids) == len(notes)
        assert [span for span in kept.spans if span.parent is None] == kept.spans[:1]
        assert all(span.parent.span_id in ids for span in kept.spans[1:] if span.parent)
        assert all(
            span.end_time >= span.start_time for span in kept.spans if span.end_time and span.start_time
        )
