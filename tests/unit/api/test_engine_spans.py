"""The engine's share of a trace, whatever ends the request."""

import asyncio
from typing import Any

import pytest

from kept_spans import SAMPLED, UNSAMPLED, KeptSpans, parents, tracing_to
from mamba_edge.errors import ApiError
from mamba_server import wire
from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.metrics.engine_spans import export_audits
from mamba_telemetry.request_trace import RequestTrace
from mamba_telemetry.tracing import Tracing
from mamba_text.sequence_text import TextVisibility
from scripted_engine import TOKENIZER, Api, ids_of

REQUEST = "POST /v1/completions"


class Traced:
    """A request that is recorded, over a scripted engine."""

    def __init__(self, header: str = SAMPLED, *, n: int = 1) -> None:
        self.api, self.kept = Api(), KeptSpans()
        self.tracing: Tracing = tracing_to(self.kept)
        self.trace: RequestTrace = self.tracing.begin(REQUEST, {"traceparent": header}, at=1.0)
        add = wire.AddRequest("r0", wire.TokenIds(ids_of("prompt")), wire.SamplingParams(max_tokens=64), n=n)
        self.run = ActiveRequest(
            self.api.engine.client,
            TOKENIZER,
            [add],
            TextVisibility(("stop!",)),
            self.api.serving.metrics,
            self.trace,
        )

    def attributes(self, name: str) -> list[dict[str, Any]]:
        return [dict(span.attributes or {}) for span in self.kept.named(name)]


def piece(start: int, stop: int, began: float, **more: Any) -> wire.PrefillTiming:
    return wire.PrefillTiming(began, began + 0.5, start, stop, int(began), 3, 90, **more)


def timeline(*pieces: wire.PrefillTiming, checkpoints: tuple[int, ...] = ()) -> wire.SequenceTimeline:
    return wire.SequenceTimeline(pieces, checkpoints)


async def test_the_engine_is_told_by_whom_and_its_words_become_spans() -> None:
    traced = Traced()
    delta = traced.api.engine.delta
    async with traced.run:
        [request] = traced.api.engine.requests
        first = timeline(piece(16, 64, 5.0, checkpoints=(64,), beside=(SAMPLED,)), piece(64, 90, 6.0))
        delta("a", at=6.5, started=5.0, first_at=6.5, cached_tokens=16, timeline=first)
        updates = traced.run.updates()
        await anext(updates)
        delta("b", at=7.0, timeline=timeline(checkpoints=(96,)))
        await anext(updates)
        again = timeline(piece(96, 99, 9.0, preemptions=1))
        delta("c", at=9.5, timeline=again, finish_reason="length")
        async for _ in updates:
            pass
    traced.tracing.end(traced.trace)
    [engine] = traced.kept.named("engine")
    assert request.traceparent == f"00-{'a' * 32}-{engine.context.span_id:016x}-01"
    below = {"engine.queue", "engine.prefill", "engine.preempted", "engine.decode"}
    assert parents(traced.kept.spans) == {REQUEST: "", "engine": REQUEST, **dict.fromkeys(below, "engine")}
    tokens = [
        (each["mambaserve.tokens.from"], each["mambaserve.tokens.to"])
        for each in traced.attributes("engine.prefill")
    ]
    assert tokens == [(16, 64), (64, 90), (96, 99)]
    assert traced.attributes("engine.prefill")[0]["mambaserve.checkpoints"] == (64,)
    assert [len(span.links) for span in traced.kept.named("engine.prefill")] == [1, 0, 0]
    [preempted] = traced.kept.named("engine.preempted")
    assert preempted.end_time
    assert preempted.start_time
    assert (preempted.end_time - preempted.start_time) / 1e9 == pytest.approx(9.0 - 7.0)
    [decode] = traced.attributes("engine.decode")
    assert (decode["mambaserve.steps"], decode["mambaserve.preemptions"]) == (2, 1)
    assert decode["mambaserve.checkpoints"] == (96,)
    [said] = traced.attributes("engine")
    assert said["gen_ai.usage.cache_read.input_tokens"] == 16
    assert (said["gen_ai.usage.output_tokens"], said["gen_ai.response.finish_reasons"]) == (3, ("length",))
    assert [event.name for event in engine.events] == ["first_token"]


async def test_what_piles_up_behind_a_slow_client_is_told_whole() -> None:
    traced = Traced()
    async with traced.run:
        for number in range(4):
            told = timeline(piece(number, number + 1, 5.0 + number), checkpoints=(number,))
            last = "length" if number == 3 else None
            traced.api.engine.delta("x", at=6.0 + number, timeline=told, finish_reason=last)
        async for _ in traced.run.updates():
            pass
    traced.tracing.end(traced.trace)
    assert len(traced.kept.named("engine.prefill")) == 4
    assert traced.attributes("engine.decode")[0]["mambaserve.checkpoints"] == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("end", "failed"),
    [("rejects 429", False), ("rejects 500", True), ("dies", True), ("fails", True), ("leaves", False)],
)
async def test_every_end_leaves_whole_spans_and_only_the_server_s_faults_fail(end: str, failed: bool) -> None:
    traced = Traced(UNSAMPLED, n=2)
    engine = traced.api.engine
    try:
        async with traced.run:
            if end.startswith("rejects"):
                engine.rejects(int(end.split()[1]), "code")
            elif end == "leaves":
                raise asyncio.CancelledError
            else:
                engine.delta("a", timeline=timeline(piece(0, 3, 5.0)))
                if end == "dies":
                    engine.dies()
                else:
                    engine.delta([], finish_reason="error", error="e")
            async for _ in traced.run.updates():
                pass
    except (ApiError, asyncio.CancelledError):
        pass
    assert traced.trace.failed is failed
    traced.tracing.end(traced.trace)
    assert bool(traced.kept.requests) is failed
    assert all(note.end for note in traced.trace.notes)


async def test_of_sequences_side_by_side_each_has_its_own() -> None:
    traced = Traced(n=2)
    async with traced.run:
        for index in range(2):
            told = timeline(piece(0, 3, 5.0 + index))
            traced.api.engine.delta("ab", index=index, timeline=told, at=8.0, finish_reason="length")
        async for _ in traced.run.updates():
            pass
    traced.tracing.end(traced.trace)
    assert [each.get("mambaserve.sequence", 0) for each in traced.attributes("engine.decode")] == [0, 1]
    assert traced.attributes("engine")[0]["gen_ai.response.finish_reasons"] == ("length", "length")
    assert traced.attributes("engine")[0]["gen_ai.usage.output_tokens"] == 2 * len(ids_of("ab"))


async def test_a_stop_string_ends_the_spans_though_the_engine_says_no_more() -> None:
    traced = Traced()
    async with traced.run:
        traced.api.engine.delta("so stop! and more", at=8.0, timeline=timeline(piece(0, 3, 5.0)))
        async for _ in traced.run.updates():
            pass
    traced.tracing.end(traced.trace)
    assert traced.attributes("engine")[0]["gen_ai.response.finish_reasons"] == ("stop",)
    assert len(traced.kept.named("engine.decode")) == 1


async def test_measurements_of_a_kept_request_point_to_it() -> None:
    traced = Traced()
    async with traced.run:
        traced.api.engine.delta("a b c", at=8.0, started=5.0, first_at=8.0, finish_reason="length")
        async for _ in traced.run.updates():
            pass
    pointing = {
        sample.name
        for family in traced.api.registry.collect()
        for sample in family.samples
        if sample.exemplar and sample.exemplar.labels == {"trace_id": "a" * 32}
    }
    ours = {name for name in pointing if name.startswith("mambaserve_")}
    assert ours == {
        f"mambaserve_{name}_seconds_bucket"
        for name in (
            "time_to_first_token", "request_queue", "request_prefill", "request_decode", "request_duration",
            "time_per_output_token",
        )
    }  # fmt: skip


async def test_the_way_of_a_state_to_the_engine_is_a_span() -> None:
    traced = Traced()
    async with traced.run:
        arrival = wire.Arrival(3.0, 4.5, "peer", "valid", 96, 1234)
        came = wire.SequenceTimeline((piece(96, 99, 5.0),), (), (arrival,))
        traced.api.engine.delta("a", at=6.5, started=5.0, first_at=6.5, cached_tokens=96, timeline=came)
        await anext(traced.run.updates())
    traced.tracing.end(traced.trace)
    [fetch] = traced.attributes("engine.fetch")
    assert fetch == {
        "mambaserve.transfer.source": "peer",
        "mambaserve.transfer.outcome": "valid",
        "mambaserve.transfer.bytes": 1234,
        "mambaserve.tokens.to": 96,
    }


async def test_an_audit_is_a_span_below_that_of_its_request_and_a_wrong_answer_is_always_kept() -> None:
    traced = Traced()
    told = {"sequence": 1, "reason": "scores", "tokens": 70, "distance": 0.5}
    for flags, outcome in (("01", "ok"), ("00", "ok"), ("00", "diverged")):
        parent = f"00-{'a' * 32}-{'b' * 16}-{flags}"
        audit = wire.AuditSpan(traceparent=parent, began=3.0, ended=4.0, outcome=outcome, **told)
        export_audits(traced.tracing, [audit])
    audits = traced.attributes("engine.audit")
    assert [each["mambaserve.audit.outcome"] for each in audits] == ["ok", "diverged"]
    assert audits[0].items() >= {"mambaserve.audit.distance": 0.5, "mambaserve.sequence": 1}.items()
    assert traced.kept.named("engine.audit")[0].parent.span_id == 0xBBBBBBBBBBBBBBBB
