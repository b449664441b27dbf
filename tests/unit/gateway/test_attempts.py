"""Outcome of each attempt: a fault of the engine, a whole answer, or neither."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mamba_edge.errors import ApiError
from mamba_gateway.errors import UpstreamLost
from mamba_gateway.relay.answer import ResponseTruncated
from mamba_gateway.upstream.connector import UpstreamRequest
from raw_engine import OK, SSE, RawEngine, says

Harnesses = Callable[..., Any]
CLOSE = b"Connection: close\r\nContent-Length: %d\r\n\r\n"


def answer(status: bytes, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\n" + CLOSE % len(body) + body


def stream(*events: bytes) -> bytes:
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    return SSE + CLOSE % len(body) + body


LOST = b'{"error":{"message":"lost","type":"service_unavailable_error"}}'
TOO_LONG = b'{"error":{"message":"too long","type":"invalid_request_error"}}'
QUOTED = b'{"text":"data: {\\"error\\":"}'
BROKEN = SSE + b"Content-Length: 100\r\n\r\ndata: 1\n\n"
TRUNCATED = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"

COUNTED = {
    "a whole answer": (says(OK), 1, 0),
    "a whole stream": (says(stream(b'{"text":"a"}', b"[DONE]")), 1, 0),
    "a stream with such words in its text": (says(stream(QUOTED, b"[DONE]")), 1, 0),
    "500": (says(answer(b"500 Oh")), 0, 1),
    "503, the last attempt": (says(answer(b"503 No")), 0, 1),
    "400": (says(answer(b"400 You")), 0, 0),
    "404": (says(answer(b"404 What")), 0, 0),
    "429": (says(answer(b"429 Later")), 0, 0),
    "no answer": (says(), 0, 1),
    "a stream that ends in an error": (says(stream(b'{"text":"a"}', LOST)), 0, 1),
    "a stream that ends in a mistake of the client": (says(stream(TOO_LONG)), 0, 0),
    "a stream that breaks off": (says(BROKEN), 0, 1),
    "an answer that breaks off": (says(TRUNCATED), 0, 1),
    "a stream that falls silent": (says(BROKEN, hold=True), 0, 1),
}


@pytest.mark.parametrize("how", COUNTED)
async def test_only_what_the_engine_did_is_counted_for_or_against_it(how: str, harness: Harnesses) -> None:
    speech, answered, failed = COUNTED[how]
    async with RawEngine(speech) as engine:
        made = harness(max_attempts=1, silence_timeout=5.0)
        made.engines(engine.url)
        with contextlib.suppress(ApiError, ResponseTruncated):
            await made.run()
        assert counts(made, engine.url) == (answered, failed)


async def test_each_attempt_of_a_request_counts_where_it_was_made(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as gone:
        nobody = gone.url
    async with RawEngine(says(answer(b"503 No"))) as refusing, RawEngine(says(OK)) as good:
        made = harness()
        made.engines(nobody, refusing.url, good.url)
        await made.run()
        assert made.status == 200
        assert [counts(made, url) for url in (nobody, refusing.url, good.url)] == [(0, 1), (0, 1), (1, 0)]


@pytest.mark.parametrize("head", [BROKEN, TRUNCATED], ids=["stream", "answer"])
@pytest.mark.parametrize("why", ["client left", "gateway ends", "longest life"])
async def test_what_the_gateway_or_the_client_ends_says_nothing_of_the_engine(
    why: str, head: bytes, harness: Harnesses
) -> None:
    async with RawEngine(says(head, hold=True)) as engine:
        made = harness(request_timeout=5.0 if why == "longest life" else 300.0, silence_timeout=60.0)
        made.engines(engine.url)
        asking = asyncio.create_task(made.run())
        await asyncio.sleep(1)
        made.relay.cancelling = why == "gateway ends"
        if why != "longest life":
            asking.cancel()
        with contextlib.suppress(ApiError, ResponseTruncated, asyncio.CancelledError):
            await asking
        assert made.in_flight == [0]
        assert counts(made, engine.url) == (0, 0)


FORMED = UpstreamRequest("/v1/completions", "", [], b"{}", "m", has_form=True)
ENGINE_LOST = b'{"error": {"message": "killed by signal 11", "code": "engine_lost"}}'


@pytest.mark.parametrize("speech", [says(), says(answer(b"503 No", ENGINE_LOST))], ids=["api", "engine"])
async def test_a_form_on_which_an_engine_ended_goes_to_no_other_one_also_when_it_comes_again(
    speech: Any, harness: Harnesses
) -> None:
    async with RawEngine(speech) as first, RawEngine(says(OK)) as second:
        made = harness()
        made.engines(first.url, second.url)
        for _ in range(3):
            with contextlib.suppress(UpstreamLost):
                await made.run(msgspec.structs.replace(FORMED))
        assert made.status != 200
        assert counts(made, second.url) == (0, 0)
        other = msgspec.structs.replace(FORMED, body=b'{"another": 1}')
        made.engines(second.url)
        made.sent.clear()
        await made.run(other)
        assert made.status == 200


async def test_the_counts_go_with_the_endpoint(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness()
        made.engines(engine.url)
        await made.run()
        made.engines()
        made.engines(engine.url)
        assert counts(made, engine.url) == (0, 0)


def counts(made: Any, url: str) -> tuple[float, float]:
    name = url.removeprefix("http://")
    answered = made.count("endpoint_attempts_total", endpoint=name, outcome="answered")
    return answered, made.count("endpoint_attempts_total", endpoint=name, outcome="failed")
