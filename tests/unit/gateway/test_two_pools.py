"""Prefill and decode engines in the pool and in routing: who is chosen, and what is known of states."""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kept_spans import KeptSpans, tracing_to
from mamba_gateway.admission.admission import Admission
from mamba_gateway.endpoints.endpoint import FAILURES, engine_capacity
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.hand_over import HandOver, TransferReport, hand_over_of, peer_header, transfer_report
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import NoCandidate, RoutingRecord
from mamba_gateway.routing.router import Router
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_prefix.prefix_index import Depths, EngineView, PrefixIndex
from raw_engine import OK, RawEngine, says

PROMPT = PromptPrefix.of(list(range(1, 4097)))
WELL = {"ready": True, "speed": EngineSpeed(10_000.0), "prompt_tokens_waiting": 0.0, "room": 1e6}


def moves(role: str, name: str, places: int = 4) -> TransferReport:
    return TransferReport(f"127.0.0.1:{7000 + ord(name[0])}", name, role, places)  # type: ignore[arg-type]


class Published(PrefixIndex):
    """An index that knows what the test says; every engine has the weights "w" unless `weights` differs."""

    def __init__(
        self, resumable: dict[str, int] | None = None, weights: dict[str, str] | None = None
    ) -> None:
        super().__init__()
        self.state = "following"
        self.resumable, self.weights = resumable or {}, weights or {}

    def depths(self, token_ids, salt, terms=None):
        return Depths(self.resumable, self.resumable)

    def engines(self):
        names = ("p", "q", "d", "e", "u")
        return {
            name: EngineView(self.weights.get(name, "w"), 16, name, 1, 0, 0, fresh=True) for name in names
        }


class Gateway:
    """A router over engines whose names are in `roles`."""

    def __init__(self, index: PrefixIndex | None = None, **roles: str) -> None:
        self.now = 1000.0
        self.pool = Pool(clock=lambda: self.now)
        self.pool.set_targets(Target(f"http://{name}", name) for name in roles)
        for name, role in roles.items():
            self.report(name, transfer=moves(role, name))
        metrics = GatewayMetrics(self.pool.snapshot)
        self.router = Router(
            self.pool, metrics, Random(1), index=index or Published(), clock=lambda: self.now
        )

    def report(self, name: str, **changes: object) -> None:
        self.pool.report(f"http://{name}", ProbeReport(**{**WELL, **changes}))  # type: ignore[arg-type]

    def decide(self) -> RoutingRecord:
        record = self.router.decide("m", PROMPT)
        assert isinstance(record, RoutingRecord)
        return record

    def answer(self, depth: int = 4080, tried: tuple[str, ...] = ()) -> RoutingRecord:
        first = self.decide()
        prefill = self.router.decide_prefill(first, ())
        assert isinstance(prefill, RoutingRecord)
        record = self.router.decide_answer(first, prefill, depth, PROMPT, tried)
        assert isinstance(record, RoutingRecord)
        return record


def name_of(record: RoutingRecord | NoCandidate) -> str:
    assert isinstance(record, RoutingRecord)
    return record.decision.endpoint.name


def test_a_prefill_engine_gets_no_request_though_it_is_the_cheapest() -> None:
    gateway = Gateway(Published({"p": 4000}), p="prefill", d="decode")
    gateway.report("d", transfer=moves("decode", "d"), prompt_tokens_waiting=1e6)
    record = gateway.decide()
    assert name_of(record) == "d"
    assert record.explained()["dropped"] == {"p": "computes prompts for others"}


def test_prefill_engines_alone_serve_no_request() -> None:
    assert Gateway(p="prefill", q="prefill").router.decide("m", PROMPT) is NoCandidate.NONE_READY


def test_the_prefill_engine_that_resumes_most_computes_the_prompt_until_its_queue_costs_more() -> None:
    gateway = Gateway(Published({"q": 3072}), p="prefill", q="prefill", d="decode")
    assert name_of(gateway.router.decide_prefill(gateway.decide(), ())) == "q"
    gateway.report("q", transfer=moves("prefill", "q"), prompt_tokens_waiting=1e6)
    assert name_of(gateway.router.decide_prefill(gateway.decide(), ())) == "p"


def test_a_prefill_engine_that_drains_or_has_other_weights_computes_nothing() -> None:
    gateway = Gateway(Published(weights={"q": "other"}), p="prefill", q="prefill", d="decode")
    gateway.report("p", ready=True, draining=True, transfer=moves("prefill", "p"))
    assert gateway.router.decide_prefill(gateway.decide(), ()) is NoCandidate.NONE_READY


def test_at_the_hand_over_the_least_loaded_engine_with_a_credit_is_chosen() -> None:
    gateway = Gateway(Published({"d": 512}), p="prefill", d="decode", e="decode")
    assert name_of(gateway.answer()) == "d"
    gateway.report("d", transfer=moves("decode", "d"), prompt_tokens_waiting=1e5)
    assert name_of(gateway.answer()) == "e"
    gateway.report("e", transfer=moves("decode", "e", places=0))
    assert name_of(gateway.answer()) == "d"
    gateway.report("d", transfer=moves("decode", "d", places=0))
    assert name_of(gateway.answer()) in "de"


def test_credits_that_this_gateway_used_count_until_the_next_report() -> None:
    gateway = Gateway(p="prefill", d="decode", e="decode")
    gateway.report("d", transfer=moves("decode", "d", places=1))
    gateway.report("e", transfer=moves("decode", "e", places=1), prompt_tokens_waiting=1e5)
    first = gateway.answer()
    assert name_of(first) == "d"
    gateway.router.sent(first, None)
    assert name_of(gateway.answer()) == "e"
    gateway.report("d", transfer=moves("decode", "d", places=1))
    assert name_of(gateway.answer()) == "d"


def test_an_engine_of_other_weights_takes_no_state_while_there_is_another() -> None:
    gateway = Gateway(Published(weights={"e": "other"}), p="prefill", d="decode", e="decode")
    gateway.report("e", transfer=moves("decode", "e"), prompt_tokens_waiting=1e5)
    first = gateway.decide()
    prefill = gateway.router.decide_prefill(first, ())
    assert (name_of(first), name_of(prefill)) == ("d", "p")
    gateway.report("e", transfer=moves("decode", "e"))
    gateway.report("d", transfer=moves("decode", "d"), prompt_tokens_waiting=1e5)
    assert isinstance(prefill, RoutingRecord)
    assert name_of(gateway.router.decide_answer(first, prefill, 4080, PROMPT, ())) == "d"


@pytest.mark.parametrize(
    ("resumable", "weights", "peer"),
    [
        ({"d": 512, "q": 4080}, {}, ("q", 4080)),
        ({"q": 4080}, {"q": "other"}, None),
        ({"d": 3800, "q": 4080}, {}, None),
        ({"d": 512}, {}, None),
        ({}, {}, None),
    ],
    ids=["deeper", "other weights", "hardly deeper", "its own", "nobody's"],
)
def test_a_peer_is_an_engine_of_the_same_weights_that_has_far_more(
    resumable: dict[str, int], weights: dict[str, str], peer: tuple[str, int] | None
) -> None:
    gateway = Gateway(Published(resumable, weights), q="prefill", d="decode")
    found = gateway.router.peer_of(gateway.decide(), 512)
    assert (found and (found[0].incarnation, found[1])) == peer


def test_an_engine_that_moves_no_states_is_no_peer_and_gets_none() -> None:
    gateway = Gateway(Published({"q": 4080}), q="prefill", d="decode")
    gateway.report("q", ready=False)
    assert gateway.router.peer_of(gateway.decide(), 512) is None
    gateway = Gateway(Published({"q": 4080}), q="prefill", u="unified")
    gateway.report("u", transfer=None)
    assert gateway.router.peer_of(gateway.decide(), 512) is None


def test_an_engine_that_restarts_keeps_its_role_until_it_reports_another() -> None:
    gateway = Gateway(p="prefill", d="decode")
    gateway.report("p", ready=False)
    assert [endpoint.role for endpoint in gateway.pool.snapshot()] == ["prefill", "decode"]
    gateway.report("p", transfer=moves("unified", "p"))
    assert [endpoint.role for endpoint in gateway.pool.snapshot()] == ["unified", "decode"]


def test_the_only_prefill_engine_is_left_out_when_it_fails_and_the_only_decode_engine_is_not() -> None:
    gateway = Gateway(p="prefill", d="decode")
    for _ in range(FAILURES):
        gateway.pool.fail("http://p", "broken")
        gateway.pool.fail("http://d", "broken")
    assert [endpoint.ready for endpoint in gateway.pool.snapshot()] == [False, True]


def test_places_of_prefill_engines_are_no_places_for_requests() -> None:
    gateway = Gateway(p="prefill", d="decode")
    gateway.report("p", transfer=moves("prefill", "p"), max_running=1000)
    gateway.report("d", transfer=moves("decode", "d"), max_running=2)
    alone = [endpoint for endpoint in gateway.pool.snapshot() if endpoint.name == "d"]
    assert engine_capacity(gateway.pool.snapshot(), "m") == engine_capacity(alone, "m")


async def test_a_request_whose_prompt_is_computed_keeps_its_place_at_the_engine_that_answers() -> None:
    admission = Admission(8, 8, 1.0, lambda: 0.0, capacity=lambda _: 1.0)
    permit, other = admission.permit(), admission.permit()
    assert permit.try_acquire()
    permit.computing()
    assert permit.reached_engine
    assert not other.try_acquire()
    permit.release()
    assert other.try_acquire()


ANSWER = (
    b'{"handover": {"address": "%s", "incarnation": "i", "export": "%s", "depth": %d, "lease_seconds": 30}}'
)


def test_a_hand_over_becomes_the_header_that_an_engine_reads() -> None:
    hand_over = hand_over_of(ANSWER % (b"[::1]:70", b"x", 32))
    assert hand_over == HandOver("[::1]:70", "i", "x", 32, lease_seconds=30)
    assert hand_over.header() == (
        b"x-mambaserve-hand-over",
        b"address=[::1]:70;incarnation=i;export=x;depth=32",
    )
    assert peer_header(TransferReport("1.2.3.4:5", "i"), 16)[1] == b"address=1.2.3.4:5;incarnation=i;depth=16"


@pytest.mark.parametrize(
    "body",
    [
        ANSWER % (b"host:7\\r\\nX: y", b"x", 32),
        ANSWER % (b"localhost:70", b"x", 32),
        ANSWER % (b"1.2.3.4:70", b"x;depth=1", 32),
        ANSWER % (b"1.2.3.4:70", b"", 32),
        ANSWER % (b"1.2.3.4:70", b"x", -1),
        b'{"choices": []}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_what_could_not_be_a_header_is_no_hand_over(body: bytes) -> None:
    assert hand_over_of(body) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"status": "ready"}',
        b"ok",
        b'{"transfer": {"address": "nowhere", "incarnation": "i"}}',
        b'{"transfer": {"address": "1.2.3.4:5", "incarnation": "i", "role": "boss"}}',
    ],
)
def test_an_engine_that_says_nothing_usable_of_transfers_moves_no_states(body: bytes) -> None:
    assert transfer_report(body) is None


def document(value: dict[str, object]) -> bytes:
    """Return a whole answer with this JSON."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def test_a_request_over_two_engines_is_one_trace_and_says_so_in_its_log_line(
    harness: Callable[..., Any],
) -> None:
    place = {"address": "127.0.0.1:7001", "incarnation": "p"}
    exported = document({"handover": {**place, "export": "x", "depth": 4080, "lease_seconds": 30}})
    async with RawEngine(says(exported)) as prefill, RawEngine(says(OK)) as decode:
        relayed, kept = harness(), KeptSpans()
        relayed.engines(prefill.url, decode.url)
        for engine, role in ((prefill, "prefill"), (decode, "decode")):
            relayed.pool.report(engine.url, ProbeReport(ready=True, transfer=moves(role, role)))
        tracing = tracing_to(kept)
        trace = tracing.begin("POST /v1/completions", {}, at=1.0)
        request = UpstreamRequest("/v1/completions", "", [], b"{}", prompt=PROMPT, trace=trace)
        await relayed.run(request)
        tracing.end(trace)
    [first], [second] = kept.named("gateway.prefill"), kept.named("gateway.attempt")
    for engine, span in ((prefill, first), (decode, second)):
        [(head, _)] = engine.requests
        context = span.context
        assert f"traceparent: 00-{context.trace_id:032x}-{context.span_id:016x}-01".encode() in head
        assert span.attributes
        assert span.attributes["mambaserve.endpoint"] == engine.url.removeprefix("http://")
    assert first.attributes
    assert first.attributes["mambaserve.tokens.to"] == 4080
    assert request.log_fields["prefill"] == prefill.url.removeprefix("http://")
    assert request.log_fields["handed_over"] == 4080
    assert request.log_fields["prefill_seconds"] >= 0
