"""Copies of requests go to a candidate: its answers are compared and dropped, and no client notices any."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from eventually import until
from mamba_api.dialects.paths import CHAT_COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from mamba_edge.exchange.request_context import CLIENT_HEADER
from mamba_edge.history.kept_answer import HISTORY_HEADER
from mamba_gateway.body_fields import UsageMeter
from mamba_gateway.endpoints.discovery import targets
from mamba_gateway.endpoints.pool import ProbeReport, Shadow, Target
from mamba_gateway.shadow import shadow_copies
from mamba_gateway.shadow.answer_record import outcomes
from mamba_gateway.shadow.answer_text import is_reproducible, written_text
from mamba_gateway.upstream.connector import UpstreamRequest
from raw_engine import SSE, RawEngine, Speech, says

GREEDY = {"messages": [{"role": "user", "content": "2+2?"}], "temperature": 0}
TOKENIZER = SimpleNamespace(for_model=lambda _: SimpleNamespace(processor=SimpleNamespace(
    tokenizer=SimpleNamespace(encode=str.split))))  # fmt: skip


def request(path: str = CHAT_COMPLETIONS, body: Any = GREEDY, **more: Any) -> UpstreamRequest:
    return UpstreamRequest(
        path, "", [], json.dumps(body).encode(), "m", meter=UsageMeter(), request_id="r1", **more
    )


def stream(*pieces: str, ident: str = "chatcmpl-1") -> bytes:
    events = [{"id": ident, "choices": [{"index": 0, "delta": {"content": piece}}]} for piece in pieces]
    events.append({"id": ident, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def speaks(*pieces: str, **more: Any) -> Speech:
    data = stream(*pieces, **more)
    return says(SSE + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)


class Shadowed:
    """A gateway in front of an engine of each revision, which copies all conversations to the candidate."""

    def __init__(self, gateway: Any, old: RawEngine, new: RawEngine, copies: int) -> None:
        self.gateway, self.old, self.new = gateway, old, new
        shadow = Shadow(1.0, copies)
        gateway.pool.set_targets(
            (Target(old.url, "old"), Target(new.url, "new", candidate_share=0.0, shadow=shadow))
        )
        for url in (old.url, new.url):
            gateway.pool.report(url, ProbeReport(ready=True))

    async def ended(self, outcome: str, count: int = 1) -> None:
        await until(
            lambda: self.gateway.count("shadow_copies_total", deployment="", outcome=outcome) == count,
            longest_pause=1.0,
        )

    def counted(self) -> dict[str, float]:
        counts = {
            f"{track} {outcome}": self.gateway.count(
                "shadow_answers_total", deployment="", track=track, outcome=outcome
            )
            for track in ("stable", "candidate")
            for outcome in ("answered", "failed")
        }
        for result in ("equal", "different"):
            counts[result] = self.gateway.count("shadow_texts_total", deployment="", result=result)
        return {name: count for name, count in counts.items() if count}


@asynccontextmanager
async def shadowed(
    harness: Callable[..., Any], old: Speech, new: Speech, copies: int = 2
) -> AsyncIterator[Shadowed]:
    async with RawEngine(old) as first, RawEngine(new) as second:
        gateway = harness(texts=TOKENIZER)
        yield Shadowed(gateway, first, second, copies)
        await gateway.relay.close()


async def test_equal_answers_are_counted_and_the_copy_is_nobodys_request(
    harness: Callable[..., Any],
) -> None:
    async with shadowed(harness, speaks("It is ", "4."), speaks("It", " is 4.", ident="other")) as world:
        asked = request(RESPONSES)
        asked.headers += [(CLIENT_HEADER, b"alice"), (b"x-mambaserve-pin", b"1h"), (HISTORY_HEADER, b"kept")]
        await world.gateway.run(asked)
        await world.ended("compared")
        assert world.gateway.body == stream("It is ", "4."), "the client gets the old revision's answer"
        assert world.counted() == {"stable answered": 1, "candidate answered": 1, "equal": 1}
        [(head, body)] = world.new.requests
        assert body == world.old.requests[0][1]
        lines = head.lower().split(b"\r\n")
        assert b"x-mambaserve-client: _shadow" in lines, "no key pays for it"
        assert b"x-mambaserve-history: none" in lines, "it is stored nowhere"
        assert not any(line.startswith(b"x-mambaserve-pin") for line in lines)
        assert b"x-mambaserve-client: alice" in world.old.requests[0][0].lower()
        for track in ("candidate", "stable"):
            name = "canary_time_to_first_token_seconds_count"
            assert world.gateway.count(name, deployment="", track=track) == 1


async def test_the_first_differing_token_is_counted(harness: Callable[..., Any]) -> None:
    async with shadowed(harness, speaks("It is surely 4."), speaks("It is surely 5.")) as world:
        await world.gateway.run(request())
        await world.ended("compared")
        assert world.counted() == {"stable answered": 1, "candidate answered": 1, "different": 1}
        assert world.gateway.count("shadow_first_difference_tokens_sum", deployment="") == 4
        sampled = request(body={**GREEDY, "temperature": 1.0})
        await world.gateway.run(sampled)
        await world.ended("compared", 2)
        assert world.counted()["different"] == 1, "a sampled answer is another one each time"


@pytest.mark.parametrize(
    "speech",
    [
        says(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
        says(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}"),
        says(SSE + b'\r\ndata: {"error": {"type": "engine_error"}}\n\n'),
        says(SSE + b"Content-Length: 500\r\n\r\ndata: {"),
        says(hold=True),
        says(),
    ],
    ids=["error", "refusal", "error event", "broken", "silent", "no answer"],
)
async def test_a_candidate_that_fails_costs_the_client_nothing(
    harness: Callable[..., Any], speech: Speech
) -> None:
    async with shadowed(harness, speaks("4"), speech) as world:
        await world.gateway.run(request())
        assert world.gateway.body == stream("4")
        await world.ended("compared")
        assert world.counted() == {"stable answered": 1, "candidate failed": 1}
        assert len(world.old.requests) == 1


async def test_a_copy_ends_with_its_client_and_none_is_made_beyond_the_bound(
    harness: Callable[..., Any],
) -> None:
    async with shadowed(harness, says(SSE + b"\r\n", hold=True), says(hold=True), copies=1) as world:
        first = asyncio.create_task(world.gateway.run(request()))
        await until(lambda: len(world.new.requests) == 1)
        second = asyncio.create_task(world.gateway.run(request()))
        await until(lambda: len(world.old.requests) == 2)
        await world.ended("no_room")
        for task in (first, second):
            task.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await world.ended("given_up")
        await world.new.left.wait()
        assert world.counted() == {}
        assert len(world.new.requests) == 1


async def test_only_requests_that_a_model_answers_and_that_fit_are_copied(
    harness: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shadowed(harness, speaks("4"), speaks("4")) as world:
        await world.gateway.run(request(EMBEDDINGS))
        monkeypatch.setattr(shadow_copies, "MAX_COPIED_BYTES", 10)
        await world.gateway.run(request())
        await world.ended("too_large")
        world.gateway.pool.report(world.new.url, ProbeReport(ready=False))
        await world.gateway.run(request())
        await world.ended("no_engine")
        world.gateway.pool.shadow = Shadow(1e-9, 2)
        await world.gateway.run(request())
        assert (len(world.old.requests), world.new.requests) == (4, [])


def test_gateways_read_share_and_bound_of_copies_from_the_labels_of_slices() -> None:
    def shadow(share: str, copies: str) -> Shadow | None:
        group = "serving.mambaserve.io/candidate"
        labels = {f"{group}-weight": "0", f"{group}-shadow": share, f"{group}-shadow-copies": copies}
        [target] = targets([{
            "metadata": {"labels": labels}, "ports": [{"port": 8000}],
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"name": "nano-candidate-a"}}],
        }], "nano-candidate-")  # fmt: skip
        assert target.candidate_share == 0.0
        return target.shadow

    assert shadow("5", "8") == Shadow(0.05, 8)
    assert [shadow(*wrong) for wrong in (("0", "8"), ("5", "0"), ("-5", "8"), ("many", "8"))] == [None] * 4


@pytest.mark.parametrize(
    ("stable", "candidate", "expected"),
    [
        ("answered", "rejected", ("answered", "failed")),
        ("rejected", "rejected", ("answered", "answered")),
        ("rejected", "failed", ("answered", "failed")),
        ("failed", "answered", ("failed", "answered")),
        ("answered", "full", None),
        ("full", "failed", None),
    ],
)
def test_a_pair_of_answers_is_judged_by_what_the_client_would_notice(
    stable: Any, candidate: Any, expected: Any
) -> None:
    assert outcomes(stable, candidate) == expected


def events(*documents: dict[str, Any]) -> bytes:
    return b"".join(b"event: x\ndata: %b\n\n" % json.dumps(document).encode() for document in documents)


def call(arguments: str, ident: str, **more: str) -> dict[str, Any]:
    function = {"arguments": arguments, **more}
    calls = [{"index": 0, "id": ident, "function": function}]
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}


def block(number: int, **delta: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": number, "delta": delta}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (
            events(call('{"a": 1', "x", name="add"), call("}", "x")),
            events(call('{"a": 1}', "y", name="add")),
            True,
        ),
        (events(call("{}", "x", name="add")), events(call("{}", "x", name="sub")), False),
        (
            events(block(0, thinking="so"), block(1, text="4")),
            events(block(0, thinking="s"), block(0, thinking="o"), block(1, text="4")),
            True,
        ),
        (events(block(0, thinking="so"), block(1, text="4")), events(block(0, text="so4")), False),
        (
            events({"choices": [{"index": 1, "text": "b"}]}, {"choices": [{"index": 0, "text": "a"}]}),
            events({"choices": [{"index": 0, "text": "a"}]}, {"choices": [{"index": 1, "text": "b"}]}),
            True,
        ),
        (
            events({"type": "response.output_text.delta", "output_index": 0, "delta": "4"}),
            events({"type": "response.output_text.delta", "output_index": 0, "delta": "5"}),
            False,
        ),
    ],
    ids=["pieces of a call", "another call", "pieces", "parts", "choices in turn", "responses"],
)
def test_streams_are_compared_by_what_the_model_wrote(one: bytes, other: bytes, equal: bool) -> None:
    assert (written_text(one, streamed=True) == written_text(other, streamed=True)) is equal


def test_whole_answers_are_compared_without_ids_and_counts() -> None:
    def answer(**more: Any) -> bytes:
        message = {"content": "4", "tool_calls": [{"id": more.get("ident"), "function": {"name": "add"}}]}
        choice = {"index": 0, "message": message, "finish_reason": more.get("reason", "stop")}
        return json.dumps({"id": more.get("ident"), "choices": [choice], "usage": {"n": 1}}).encode()

    def use(**arguments: int) -> bytes:
        return json.dumps({"content": [{"type": "tool_use", "name": "add", "input": arguments}]}).encode()

    first = written_text(answer(ident="a"), streamed=False)
    assert first is not None
    assert first == written_text(answer(ident="b"), streamed=False)
    assert first != written_text(answer(ident="a", reason="length"), streamed=False)
    assert written_text(use(a=1, b=2), streamed=False) == written_text(use(b=2, a=1), streamed=False)
    assert written_text(use(a=1), streamed=False) != written_text(use(a=2), streamed=False)
    assert written_text(b"{", streamed=False) is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0}, True), ({"seed": 7}, True), ({"temperature": 0.5}, False), ({}, False),
        ({"temperature": "cold"}, False),
    ],
)  # fmt: skip
def test_texts_are_compared_where_the_request_asks_for_the_same_text(body: Any, expected: bool) -> None:
    assert is_reproducible(json.dumps({**body, "path": MESSAGES}).encode()) is expected
