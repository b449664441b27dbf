"""Streamed requests that wait long: comments keep the connection, and whatever comes then fits the stream."""

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Send

from asgi import Asked
from eventually import until
from mamba_edge.errors import ApiError
from mamba_gateway.errors import NoEndpoint, UpstreamLost
from mamba_gateway.relay.answer import ResponseTruncated
from mamba_gateway.upstream.connector import UpstreamRequest
from proxy_harness import ProxyHarness, Script, hang

STREAM = {"model": "m", "prompt": "x", "stream": True}
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
COMMENT = b": waiting\n\n"


def after(seconds: float, *messages: dict[str, Any], error: Exception | None = None) -> Script:
    """Return an engine that is silent at first."""

    async def script(_call: UpstreamRequest, send: Send) -> None:
        await asyncio.sleep(seconds)
        for message in messages:
            await send(dict(message))
        if error is not None:
            raise error

    return script


def start(status: int = 200, headers: Any = EVENTS) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


WHOLE = (start(), body(b"data: 1\n\n", more=True), body(b"data: [DONE]\n\n"))


async def answered(script: Script, request: Any = STREAM, **limits: Any) -> tuple[ProxyHarness, Asked]:
    harness = ProxyHarness(script, **limits)
    asked = await harness.ask(request).done(1000.0)
    assert harness.is_empty()
    await asyncio.sleep(100)  # nothing goes on behind the end
    return harness, asked


def last_error(asked: Asked) -> dict[str, Any]:
    """Return the error event that ends the stream, before [DONE]."""
    assert asked.status == 200
    assert asked.headers["content-type"].startswith("text/event-stream")
    assert asked.complete
    *_, event, done, rest = asked.body.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    error: dict[str, Any] = json.loads(event.removeprefix(b"data: "))["error"]
    return error


async def test_a_stream_that_waits_gets_a_comment_for_each_interval_and_then_its_answer_as_it_is() -> None:
    harness, asked = await answered(after(50, *WHOLE), comment_interval=15.0)
    assert asked.body == COMMENT * 3 + b"data: 1\n\ndata: [DONE]\n\n"
    assert [one["type"] for one in asked.messages].count("http.response.start") == 1
    assert asked.headers["x-accel-buffering"] == "no"
    assert "x-request-id" in asked.headers
    assert harness.answered() == {("m", "200"): 1}


async def test_comments_end_where_the_answer_begins() -> None:
    async def slow(_call: UpstreamRequest, send: Send) -> None:
        await send(start())
        for number in range(3):
            await asyncio.sleep(40)
            await send(body(b"data: %d\n\n" % number, more=True))
        await send(body(b"data: [DONE]\n\n"))

    _, asked = await answered(slow)
    assert asked.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\ndata: [DONE]\n\n"


async def test_comments_are_no_first_byte_of_an_answer() -> None:
    harness, asked = await answered(after(20, error=NoEndpoint("none")))
    assert COMMENT in asked.body
    assert harness.count("mambaserve_gateway_time_to_first_byte_seconds_count") == 0


async def test_a_stream_that_is_answered_in_time_is_left_alone() -> None:
    _, asked = await answered(after(14, *WHOLE))
    assert asked.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert asked.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("request_body", [{"model": "m"}, {"model": "m", "stream": False}])
async def test_an_answer_that_is_no_stream_waits_in_silence(request_body: Any) -> None:
    _, asked = await answered(after(100, error=NoEndpoint("none is ready")), request_body)
    assert (asked.status, asked.error["code"]) == (503, "no_ready_endpoint")


async def test_comments_can_be_switched_off() -> None:
    _, asked = await answered(after(100, error=NoEndpoint("none is ready")), comment_interval=0)
    assert (asked.status, asked.error["code"]) == (503, "no_ready_endpoint")


async def test_an_error_before_the_first_comment_keeps_its_status() -> None:
    harness, asked = await answered(after(14, error=NoEndpoint("none is ready", retry_after=2)))
    assert (asked.status, asked.error["code"], asked.headers["retry-after"]) == (
        503,
        "no_ready_endpoint",
        "2",
    )
    assert harness.answered() == {("m", "503"): 1}


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (NoEndpoint("none is ready"), "no_ready_endpoint", "503"),
        (UpstreamLost("gone"), "upstream_died", "502"),
        (RuntimeError("a defect"), "internal_error", "500"),
    ],
)
async def test_an_error_after_a_comment_is_an_event_and_counted_as_what_it_is(
    error: Exception, code: str, status: str
) -> None:
    harness, asked = await answered(after(20, error=error))
    assert asked.body.startswith(COMMENT)
    told = last_error(asked)
    assert told["code"] == code
    assert set(told) == {"message", "type", "param", "code"}
    if isinstance(error, ApiError):
        assert told["message"] == error.message
    assert harness.answered() == {("m", status): 1}


REFUSAL = {"message": "too\nlong", "type": "invalid_request_error", "param": "prompt", "code": "c"}
JSON = [(b"content-type", b"application/json")]


async def test_an_engine_s_refusal_after_a_comment_is_an_event_with_its_own_words() -> None:
    text = json.dumps({"error": REFUSAL}, indent=2).encode()
    script = after(20, start(400, JSON), body(text[:10], more=True), body(text[10:]))
    harness, asked = await answered(script)
    assert last_error(asked) == REFUSAL
    assert harness.answered() == {("m", "400"): 1}


@pytest.mark.parametrize(
    ("status", "headers", "content"),
    [
        (200, JSON, b'{"choices": []}'),
        (500, [], b"<html>oops</html>"),
        (200, [*EVENTS, (b"content-encoding", b"gzip")], b"\x1f\x8b\x00"),
        (500, JSON, b"x" * 1_000_000),
        (502, JSON, b"[" * 10_000),
    ],
)
async def test_an_answer_that_fits_into_no_stream_is_told_as_an_error(
    status: int, headers: Any, content: bytes
) -> None:
    _, asked = await answered(after(20, start(status, headers), body(content, more=True), body(b"")))
    assert (last_error(asked)["code"], str(status) in last_error(asked)["message"]) == ("upstream_died", True)
    assert len(asked.body) < 1000


async def test_a_refusal_that_breaks_off_after_a_comment_is_an_event_too() -> None:
    script = after(20, start(400, JSON), body(b'{"err', more=True), error=ResponseTruncated())
    _, asked = await answered(script)
    assert last_error(asked)["code"] == "upstream_died"


async def test_a_wait_for_a_place_gets_comments_too_and_its_end_is_an_event() -> None:
    harness = ProxyHarness(hang, places=1, queue=1, queue_timeout=40.0)
    first = harness.ask()
    await until(lambda: harness.admission.in_flight == 1)
    waiting = await harness.ask(STREAM).done(1000.0)
    assert waiting.body.count(COMMENT) == 2
    assert last_error(waiting)["code"] == "rate_limit_exceeded"
    await first.leave().done()
    assert harness.is_empty()


async def test_the_end_of_a_drain_is_an_event_for_who_has_comments() -> None:
    harness = ProxyHarness(hang, comment_interval=0.004)
    asked = harness.ask(STREAM)
    await until(lambda: COMMENT in asked.body)
    harness.proxy.cancel_running()
    assert last_error(await asked.done())["code"] == "draining"
    assert harness.answered() == {("m", "503"): 1}


async def test_a_client_that_leaves_during_comments_leaves_nothing() -> None:
    harness = ProxyHarness(hang, comment_interval=0.004)
    asked = harness.ask(STREAM)
    await until(lambda: asked.body.count(COMMENT) >= 2)
    await asked.leave().done()
    sent = len(asked.messages)
    await asyncio.sleep(100)
    assert (len(asked.messages), len(asyncio.all_tasks())) == (sent, 1)
    assert harness.answered() == {("m", "499"): 1}
    assert harness.is_empty()


async def test_a_client_that_stops_reading_comments_does_not_keep_the_request() -> None:
    harness = ProxyHarness(after(0.05, error=NoEndpoint("none")), comment_interval=0.004)
    asked = harness.ask(STREAM)
    await until(lambda: COMMENT in asked.body)
    asked.reading.clear()
    await asked.done(1000.0)
    assert not asked.complete
    assert harness.is_empty()
    assert harness.answered() == {("m", "503"): 1}
