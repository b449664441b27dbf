"""The relay before engines that speak raw bytes: broken, late, odd and vanishing ones."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from eventually import until
from kept_spans import KeptSpans, tracing_to
from mamba_edge.errors import ApiError
from mamba_gateway.body_fields import UsageMeter
from mamba_gateway.endpoints.pool import ProbeReport
from mamba_gateway.errors import NoEndpoint, UpstreamIdleTimeout, UpstreamLost
from mamba_gateway.headers import to_engine
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics, RetryReason
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.relay.answer import ResponseTruncated
from mamba_gateway.upstream.connection import PIECE_BYTES
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_prefix.prefix_index import Depths, PrefixIndex
from raw_engine import KEPT, OK, SSE, RawEngine, says

Harnesses = Callable[..., Any]
ASKED = UpstreamRequest("/v1/completions", "", [], b"{}", "m")


async def refusing_port() -> str:
    """Return the URL of a port where nobody listens."""
    server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()
    await server.wait_closed()
    return url


BROKEN_BEFORE_THE_FIRST_BYTE = {
    "nothing at all": says(),
    "half a status line": says(b"HTTP/1.1 20"),
    "half of the headers": says(b"HTTP/1.1 200 OK\r\nContent-Type: text/ev"),
    "no HTTP": says(b"SSH-2.0-OpenSSH_9.9\r\n"),
    "a foreign version": says(b"HTTP/9.9 200 Fine\r\n\r\n"),
    "a status that is no number": says(b"HTTP/1.1 OK 200\r\n\r\n"),
    "headers beyond every limit": says(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 70_000 + b"\r\n\r\n"),
    "headers and no body": says(SSE + b"Content-Length: 10\r\n\r\n"),
    "headers and no chunk": says(SSE + b"Transfer-Encoding: chunked\r\n\r\n"),
    "a chunk that is no chunk": says(SSE + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
}


@pytest.mark.parametrize("how", BROKEN_BEFORE_THE_FIRST_BYTE)
async def test_an_answer_that_breaks_before_its_first_byte_is_asked_for_elsewhere(
    how: str, harness: Harnesses
) -> None:
    async with RawEngine(BROKEN_BEFORE_THE_FIRST_BYTE[how]) as bad, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(bad.url, good.url)
        await made.run()
        assert (made.status, made.body) == (200, b"{}")
        assert [len(bad.requests), len(good.requests)] == [1, 1]
        assert good.requests[0][1] == b'{"model": "m"}'
        assert made.in_flight == [0, 0]
        assert made.count("retries_total", reason="died") == 1


@pytest.mark.parametrize("how", BROKEN_BEFORE_THE_FIRST_BYTE)
async def test_with_no_other_engine_it_is_502_at_once_and_nothing_was_sent(
    how: str, harness: Harnesses
) -> None:
    async with RawEngine(BROKEN_BEFORE_THE_FIRST_BYTE[how]) as bad:
        made = harness(hold_timeout=30, max_attempts=1)
        made.engines(bad.url)
        with pytest.raises(UpstreamLost, match="before it answered"):
            await made.run()
        assert made.sent == []
        assert made.in_flight == [0]


async def test_the_only_engine_that_died_is_not_tried_again_though_it_came_back(harness: Harnesses) -> None:
    async with RawEngine(says()) as bad:
        made = harness(hold_timeout=30)
        made.engines(bad.url)
        asking = asyncio.create_task(made.run())
        await until(lambda: made.count("retries_total", reason="died"))
        made.pool.report(bad.url, ProbeReport(ready=True))
        with pytest.raises(UpstreamLost):
            await asyncio.wait_for(asking, 2)
        assert len(bad.requests) == 1


@pytest.mark.parametrize(
    "content_type", ["text/event-stream", "TEXT/Event-Stream", "text/event-stream; charset=utf-8"]
)
@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n\r\n", b"Content-Length: 900\r\n\r\n"])
async def test_a_stream_that_breaks_after_its_first_byte_ends_in_an_error_event_and_is_not_repeated(
    content_type: str, framing: bytes, harness: Harnesses
) -> None:
    data = b'data: {"n": 1}\n\ndata: {"ha'
    chunk = b"%x\r\n%s\r\n" % (len(data), data) if b"chunked" in framing else data
    head = b"HTTP/1.1 200 OK\r\nContent-Type: " + content_type.encode() + b"\r\n" + framing
    async with RawEngine(says(head + chunk)) as bad, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(bad.url, good.url)
        await made.run()
        first, error, done, rest = made.body.split(b"\n\n")
        assert (first, done, rest) == (b'data: {"n": 1}', b"data: [DONE]", b"")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_died"
        assert made.sent[-1]["more_body"] is False
        assert b"content-length" not in made.headers
        assert good.requests == []
        assert made.count("broken_streams_total") == 1


@pytest.mark.parametrize("content_type", [None, "application/json", "text/plain", "text/event-streams"])
async def test_any_other_answer_that_breaks_is_left_unfinished(
    content_type: str | None, harness: Harnesses
) -> None:
    typed = f"Content-Type: {content_type}\r\n".encode() if content_type else b""
    async with RawEngine(says(b"HTTP/1.1 200 OK\r\n" + typed + b"Content-Length: 99\r\n\r\n{")) as bad:
        made = harness()
        made.engines(bad.url)
        with pytest.raises(ResponseTruncated):
            await made.run()
        assert made.body == b"{"
        assert all(message.get("more_body", True) for message in made.sent)
        assert made.in_flight == [0]


async def test_an_engine_that_lives_in_silence_for_too_long_is_given_up_without_asking_another(
    harness: Harnesses,
) -> None:
    async with RawEngine(says(hold=True)) as mute, RawEngine(says(OK)) as good:
        made = harness(silence_timeout=100.0)
        made.engines(mute.url, good.url)
        with pytest.raises(UpstreamIdleTimeout):
            await made.run()
        assert good.requests == []
        assert made.in_flight == [0, 0]
        await asyncio.wait_for(mute.left.wait(), 2)


async def test_a_stream_that_falls_silent_says_so_in_its_last_event(harness: Harnesses) -> None:
    async with RawEngine(says(SSE + b"\r\n", b"data: 1\n\n", hold=True)) as mute:
        made = harness()
        made.engines(mute.url)
        await made.run()
        assert made.body.startswith(b"data: 1\n\n")
        assert b'"upstream_silent"' in made.body
        await asyncio.wait_for(mute.left.wait(), 2)


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 307 Go\r\nLocation: /admin/drain\r\nContent-Length: 2\r\n\r\nno", 307, b"no"),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\noops", 500, b"oops"),
        (b"HTTP/1.1 429 Later\r\nRetry-After: 9\r\nContent-Length: 0\r\n\r\n", 429, b""),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\na\r\n0\r\nT: 1\r\n\r\n", 200, b"a"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"{}"),
    ],
)
async def test_unusual_answers_are_passed_on_as_they_are(
    answer: bytes, status: int, body: bytes, harness: Harnesses
) -> None:
    async with RawEngine(says(answer)) as engine:
        made = harness()
        made.engines(engine.url)
        await made.run()
        assert (made.status, made.body) == (status, body)
        assert made.sent[-1]["more_body"] is False
        assert len(engine.requests) == 1


async def test_path_and_query_reach_the_engine_byte_for_byte(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness()
        made.engines(engine.url)
        await made.run(UpstreamRequest("/v1/completions", "a=%2F%20&b=+&c=%C3%A9&&d", [], b"{}"))
        assert engine.requests[0][0].startswith(b"POST /v1/completions?a=%2F%20&b=+&c=%C3%A9&&d HTTP/1.1\r\n")


async def test_a_large_body_is_sent_whole_again_after_an_engine_died_on_it(harness: Harnesses) -> None:
    body = bytes(range(256)) * (PIECE_BYTES // 32)

    async with RawEngine(says()) as bad, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(bad.url, good.url)
        await made.run(UpstreamRequest("/v1/completions", "", [], body))
        assert made.status == 200
        assert [request[1] == body for request in (*bad.requests, *good.requests)] == [True, True]


async def test_unreachable_engines_are_passed_over_as_often_as_allowed(harness: Harnesses) -> None:
    nowhere = [await refusing_port() for _ in range(3)]
    async with RawEngine(says(OK)) as good:
        made = harness(max_attempts=4)
        made.engines(*nowhere, good.url)
        await made.run()
        assert made.status == 200
        assert made.count("retries_total", reason="unreachable") == 3
        made = harness(max_attempts=3)
        made.engines(*nowhere, good.url)
        with pytest.raises(NoEndpoint, match="could be reached") as caught:
            await made.run()
        assert caught.value.retry_after == 2
        assert made.in_flight == [0, 0, 0, 0]


async def test_an_engine_that_did_not_answer_the_call_is_not_chosen_before_its_next_good_report(
    harness: Harnesses,
) -> None:
    nowhere = await refusing_port()
    async with RawEngine(says(OK)) as good:
        made = harness()
        made.engines(nowhere, good.url)
        await made.run()
        await made.run()
        assert made.count("retries_total", reason="unreachable") == 1
        assert "Connect" in made.pool.reasons()[nowhere.removeprefix("http://")]


async def test_a_connection_that_the_engine_closed_while_it_was_idle_is_not_used_again(
    harness: Harnesses,
) -> None:
    async with RawEngine(says(KEPT)) as engine:
        made = harness()
        made.engines(engine.url)
        for _ in range(3):
            await made.run()
            await asyncio.sleep(0.05)
        assert len(engine.requests) == 3
        assert made.count("retries_total", reason="died") == 0


async def test_an_endpoint_that_is_removed_in_the_middle_of_a_stream_finishes_it(harness: Harnesses) -> None:
    gate = asyncio.Event()

    async def speech(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SSE + b"\r\ndata: 1\n\n")
        await gate.wait()
        writer.write(b"data: [DONE]\n\n")
        await writer.drain()

    async with RawEngine(speech) as engine:
        made = harness()
        made.engines(engine.url)
        asking = asyncio.create_task(made.run())
        await until(lambda: made.body)
        assert made.in_flight == [1]
        made.pool.set_targets(())
        made.engines(engine.url)
        gate.set()
        await asyncio.wait_for(asking, 2)
        assert made.body == b"data: 1\n\ndata: [DONE]\n\n"
        assert made.in_flight == [0]


@pytest.mark.parametrize("said", [(), (SSE + b"\r\n",), (SSE + b"\r\ndata: 1\n\n",)], ids=len)
async def test_a_cancelled_request_closes_the_engine_s_connection_whatever_had_come(
    said: Iterable[bytes], harness: Harnesses
) -> None:
    async with RawEngine(says(*said, hold=True)) as engine:
        made = harness()
        made.engines(engine.url)
        asking = asyncio.create_task(made.run())
        await until(lambda: engine.requests)
        await asyncio.sleep(0.03)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.wait_for(engine.left.wait(), 1)
        assert made.in_flight == [0]
        assert b"error" not in made.body


async def test_a_stream_cut_at_the_end_of_a_drain_ends_in_an_event_that_says_so(harness: Harnesses) -> None:
    async with RawEngine(says(SSE + b"\r\ndata: 1\n\ndata: 2", hold=True)) as engine:
        made = harness()
        made.engines(engine.url)
        asking = asyncio.create_task(made.run())
        await until(lambda: made.body)
        made.relay.cancelling = True
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        first, error, done, _ = made.body.split(b"\n\n")
        assert (first, done) == (b"data: 1", b"data: [DONE]")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "draining"


async def test_a_hundred_ends_of_every_kind_leave_no_request_in_flight(harness: Harnesses) -> None:
    rng = Random(8)

    async def any_speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kinds = [*BROKEN_BEFORE_THE_FIRST_BYTE.values(), says(OK), says(SSE + b"\r\ndata: 1\n\n")]
        await rng.choice(kinds)(reader, writer)

    async with RawEngine(any_speech) as one, RawEngine(any_speech) as two:
        made = harness(hold_timeout=0.05)
        made.engines(one.url, two.url)

        async def visit() -> None:
            with contextlib.suppress(ApiError, ResponseTruncated, TimeoutError):
                async with asyncio.timeout(rng.uniform(0.001, 0.2)):
                    await made.run()

        for _ in range(4):
            made.engines(one.url, two.url)
            await asyncio.gather(*(visit() for _ in range(25)))
        assert made.in_flight == [0, 0]
        assert made.count("held") == 0


@pytest.mark.parametrize("value", ["caf\u00e9 \u4e16".encode(), b"plain", b'"quoted", a;b=c'])
async def test_a_header_in_utf_8_reaches_the_engine_byte_for_byte(value: bytes, harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness()
        made.engines(engine.url)
        headers = to_engine([(b"x-user", value)], "id-1")
        await made.run(UpstreamRequest("/v1/completions", "", headers, b"{}"))
        assert b"x-user: " + value + b"\r\n" in engine.requests[0][0]


async def test_who_asks_is_told_why_this_engine_was_chosen_and_nobody_else_is(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as near, RawEngine(says(OK)) as far:
        made = harness()
        made.engines(near.url, far.url)
        await made.run(replace(ASKED, explain=True, request_id="r-1"))
        told = json.loads(made.headers[b"x-mambaserve-explain"])
        assert (told["engine"], told["reason"]) == (near.url.removeprefix("http://"), "load")
        assert [one["engine"] for one in told["considered"]][1] == far.url.removeprefix("http://")
        assert next(iter(made.router.log.last())).request_id == "r-1"
        made.sent.clear()
        await made.run()
        assert b"x-mambaserve-explain" not in made.headers


async def test_a_prompt_is_before_the_next_ones_until_its_answer_begins(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness()
        made.engines(engine.url, prompt_tokens_waiting=0.0)
        queued: list[float] = []

        async def noting(message: Any) -> None:
            queued.append(made.pool.snapshot()[0].queued_tokens)
            await made.send(message)

        begin = made.pool.begin

        def began(url: str, tokens: float = 0.0) -> int:
            ticket = begin(url, tokens)
            queued.append(made.pool.snapshot()[0].queued_tokens)
            return ticket

        made.pool.begin = began
        await made.relay.run(replace(ASKED, body=b"x" * 400), noting)
        assert queued[0] == 100
        assert set(queued[1:]) == {0}


async def test_requests_of_one_prompt_go_where_the_first_one_went(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as one, RawEngine(says(OK)) as two, RawEngine(says(OK)) as three:
        made = harness()
        made.engines(one.url, two.url, three.url, running=0)
        assert made.relay.has_choice
        for _ in range(6):
            await made.run(replace(ASKED, prompt=PromptPrefix.of(range(1000))))
        assert sorted(len(engine.requests) for engine in (one, two, three)) == [0, 0, 6]
        assert {record.decision.reason for record in made.router.log.last(5)} == {"prefix"}


async def test_with_one_engine_there_is_no_choice(harness: Harnesses) -> None:
    made = harness()
    made.engines("http://127.0.0.1:1")
    assert not made.relay.has_choice


async def test_each_attempt_is_a_span_and_the_engine_s_are_below_its_own(harness: Harnesses) -> None:
    async with RawEngine(says()) as first, RawEngine(says(OK)) as second:
        made, kept = harness(), KeptSpans()
        made.engines(first.url, second.url)
        tracing = tracing_to(kept, ratio=0.0)
        trace = tracing.begin("POST /v1/completions", {}, at=1.0)
        await made.run(UpstreamRequest("/v1/completions", "", [], b"{}", trace=trace))
        tracing.end(trace)
        sent = [re.search(rb"traceparent: (\S+)", engine.requests[0][0]) for engine in (first, second)]
    failed, good = kept.named("gateway.attempt")
    told = [
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-00".encode() for span in (failed, good)
    ]
    assert [match and match[1] for match in sent] == told
    assert failed.attributes
    assert good.attributes
    assert (failed.attributes["error.type"], "error.type" in good.attributes) == ("died", False)
    assert good.attributes["http.response.status_code"] == 200
    chosen = [
        span.attributes["mambaserve.endpoint"] for span in kept.named("gateway.route") if span.attributes
    ]
    assert chosen == [engine.url.removeprefix("http://") for engine in (first, second)]


async def test_a_stream_that_tells_an_error_is_kept_as_a_failure(harness: Harnesses) -> None:
    event = b'data: {"error":{"message":"m","code":"c"}}\n\n'
    for text, kept_spans in ((event, 3), (b'data: {"text":"data: {\\"error\\":"}\n\n', 0)):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(text)
        async with RawEngine(says(head + text)) as engine:
            made, kept = harness(), KeptSpans()
            made.engines(engine.url)
            tracing = tracing_to(kept, ratio=0.0)
            trace = tracing.begin("POST /v1/completions", {}, at=1.0)
            await made.run(UpstreamRequest("/v1/completions", "", [], b"{}", trace=trace))
            tracing.end(trace)
        assert len(kept.spans) == kept_spans


class LyingIndex(PrefixIndex):
    """One that says the first engine could resume 32 tokens, until it is told better."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        self.state, self.engine, self.withdrawn = "following", engine, 0

    def depths(self, *_: Any) -> Depths:
        return Depths({} if self.withdrawn else {self.engine: 32}, {})

    def withdraw(self, engine: str, *_: Any) -> bool:
        assert engine == self.engine
        self.withdrawn += 1
        return True


@pytest.mark.parametrize("streams", [False, True])
async def test_what_an_answer_says_was_resumed_corrects_the_index(harness: Harnesses, streams: bool) -> None:
    said = b'{"usage": {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 0}}}'
    head, body = (SSE, b"data: %s\n\n" % said) if streams else (b"HTTP/1.1 200 OK\r\n", said)
    answer = head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with RawEngine(says(answer)) as engine, RawEngine(says(answer)) as other:
        index = LyingIndex(engine.url.removeprefix("http://"))
        made = harness(index=index)
        made.engines(engine.url, other.url)
        for asked in range(2):
            prompt = PromptPrefix.of(list(range(100 * asked, 100 * asked + 40)))
            await made.run(replace(ASKED, prompt=prompt, meter=UsageMeter()))
        assert index.withdrawn == 1
        series = "mambaserve_prefix_index_promises_total"
        assert made.metrics.registry.get_sample_value(series, {"outcome": "false"}) == 1


def test_each_reason_to_try_elsewhere_is_a_series_from_the_start() -> None:
    text = GatewayMetrics(lambda: ()).render().decode()
    for reason in get_args(RetryReason):
        assert f'mambaserve_gateway_retries_total{{reason="{reason}"}} 0.0' in text
