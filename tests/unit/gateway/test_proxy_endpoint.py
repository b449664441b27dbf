"""One relayed request: whatever its end, it is answered once, counted once, and leaves nothing behind."""

import asyncio
import contextlib
import json
import logging
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.types import Send
from structlog.testing import capture_logs

from eventually import until
from kept_spans import KeptSpans, parents, tracing_to
from mamba_api.openai import CompletionRequest
from mamba_edge.api_keys import KeyFile
from mamba_edge.app.validation import invalid
from mamba_edge.errors import ApiError, InvalidRequest
from mamba_edge.usage.prices import PRICES_HEADER, Prices
from mamba_gateway.body_fields import routing_fields
from mamba_gateway.errors import NoEndpoint, UpstreamLost
from mamba_gateway.relay.answer import ResponseTruncated
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_server.api.requests.json_fields import parse_json_object
from proxy_harness import ProxyHarness, Script, begun, fine, hang


def failing(error: Exception, *, after: Script | None = None) -> Script:
    async def script(call: UpstreamRequest, send: Send) -> None:
        if after is not None:
            await after(call, send)
        raise error

    return script


async def test_an_answer_is_counted_once_with_its_model_and_status() -> None:
    harness = ProxyHarness()
    asked = await harness.ask().done()
    assert (asked.status, asked.body) == (200, b"{}")
    assert harness.answered() == {("m", "200"): 1}
    assert harness.count("mambaserve_gateway_request_duration_seconds_count") == 1
    assert harness.count("mambaserve_gateway_time_to_first_byte_seconds_count") == 1
    assert harness.is_empty()


@pytest.mark.parametrize(
    ("body", "model", "status", "code"),
    [
        (b"{", "unknown", 400, "invalid_json"),
        (b"\xff\xfe", "unknown", 400, "invalid_json"),
        (b"x" * 1001, "unknown", 413, "request_too_large"),
        ({"model": ["m"]}, "unknown", 400, "invalid_type"),
    ],
)
async def test_a_refused_body_is_counted_once_under_no_model_of_its_own(
    body: Any, model: str, status: int, code: str
) -> None:
    harness = ProxyHarness()
    asked = await harness.ask(body).done()
    assert (asked.status, asked.error["code"]) == (status, code)
    assert asked.headers["content-type"] == "application/json"
    assert harness.answered() == {(model, str(status)): 1}
    assert harness.relay.calls == []
    assert harness.is_empty()


@pytest.mark.parametrize(
    "error",
    [NoEndpoint("no engine is known", retry_after=2), UpstreamLost("gone"), ApiError("odd")],
    ids=lambda error: error.code,
)
async def test_an_error_of_the_relay_becomes_its_envelope(error: ApiError) -> None:
    harness = ProxyHarness(failing(error))
    asked = await harness.ask().done()
    assert asked.status == error.status
    assert asked.error == {
        "message": error.message, "type": error.kind, "param": None, "code": error.code,
    }  # fmt: skip
    assert ("retry-after" in asked.headers) == (error.retry_after is not None)
    assert harness.answered() == {("m", str(error.status)): 1}
    assert harness.is_empty()


async def test_an_error_after_the_answer_began_sends_no_second_status() -> None:
    harness = ProxyHarness(failing(UpstreamLost("gone"), after=begun))
    asked = await harness.ask().done()
    assert [message["type"] for message in asked.messages] == ["http.response.start", "http.response.body"]
    assert harness.answered() == {("m", "200"): 1}


async def test_a_truncated_answer_ends_without_the_end_of_its_body() -> None:
    harness = ProxyHarness(failing(ResponseTruncated(), after=begun))
    asked = await harness.ask().done()
    assert not asked.complete
    assert harness.answered() == {("m", "200"): 1}
    assert harness.is_empty()


async def test_a_defect_is_counted_as_the_500_that_the_client_gets() -> None:
    harness = ProxyHarness(failing(RuntimeError("a defect")))
    asked = await harness.ask().done()
    assert (asked.status, asked.error["code"]) == (500, "internal_error")
    assert harness.answered() == {("m", "500"): 1}
    assert harness.is_empty()


@pytest.mark.parametrize("header", [None, "Bearer wrong", "bearer", "Basic key-1"])
async def test_without_a_key_not_a_byte_of_the_body_is_read(header: str | None, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    harness = ProxyHarness(keys=tmp_path / "keys")
    asked = await harness.asked(headers=[("Authorization", header)] if header else []).done()
    assert (asked.status, asked.error["code"]) == (401, "invalid_api_key")
    assert asked.headers["www-authenticate"] == "Bearer"
    assert harness.answered() == {("unknown", "401"): 1}


async def test_the_scheme_of_a_key_may_be_written_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    harness = ProxyHarness(keys=tmp_path / "keys")
    asked = await harness.ask(headers=[("AUTHORIZATION", "bEaReR  key-1 ")]).done()
    assert asked.status == 200


async def test_a_client_that_leaves_in_the_middle_of_the_body() -> None:
    harness = ProxyHarness()
    asked = await harness.asked().part(b'{"model": ').leave().done()
    assert asked.messages == []
    assert harness.answered() == {("unknown", "499"): 1}
    assert harness.count("mambaserve_gateway_cancelled_total") == 1
    assert harness.is_empty()


async def test_a_client_that_leaves_while_waiting_for_a_place() -> None:
    harness = ProxyHarness(hang, places=1)
    first, second = harness.ask(), harness.ask()
    await until(lambda: harness.admission.in_flight == 1 and harness.admission.admitted == 2)
    second.leave()
    await second.done()
    assert len(harness.relay.calls) == 1
    assert harness.admission.queued == 0
    first.leave()
    await first.done()
    assert harness.answered() == {("m", "499"): 2}
    assert harness.is_empty()


async def test_a_client_that_leaves_before_the_answer_began() -> None:
    harness = ProxyHarness(hang)
    asked = harness.ask()
    await until(lambda: bool(harness.relay.calls))
    await asked.leave().done()
    assert asked.messages == []
    assert harness.answered() == {("m", "499"): 1}
    assert harness.count("mambaserve_gateway_time_to_first_byte_seconds_count") == 0


async def test_a_client_that_leaves_in_the_middle_of_the_answer_and_the_engine_hears_of_it() -> None:
    ended: list[str] = []

    async def endless(call: UpstreamRequest, send: Send) -> None:
        await begun(call, send)
        try:
            await hang(call, send)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    harness = ProxyHarness(endless)
    asked = harness.ask()
    await until(lambda: len(asked.messages) == 2)
    await asked.leave().done()
    assert ended == ["cancelled"]
    assert harness.answered() == {("m", "499"): 1}
    assert harness.is_empty()


async def test_a_client_that_leaves_while_it_does_not_read() -> None:
    harness = ProxyHarness(fine)
    asked = harness.ask(blocked=True)
    await until(lambda: bool(harness.relay.calls))
    await asked.leave().done()
    assert harness.answered() == {("m", "499"): 1}
    assert harness.is_empty()


async def test_a_full_house_refuses_without_reading_and_says_when_to_come_back() -> None:
    harness = ProxyHarness(hang, places=1, queue=0)
    first = harness.ask()
    await until(lambda: harness.admission.in_flight == 1)
    refused = await harness.asked().done()
    assert (refused.status, refused.error["code"], refused.error["type"]) == (
        429, "rate_limit_exceeded", "rate_limit_error",
    )  # fmt: skip
    assert int(refused.headers["retry-after"]) >= 1
    await first.leave().done()
    assert harness.answered() == {("unknown", "429"): 1, ("m", "499"): 1}


async def test_a_slow_body_takes_room_in_the_house_and_no_place() -> None:
    harness = ProxyHarness(places=1, queue=1, body_timeout=0.05)
    slow = harness.asked().part(b'{"model": "m"')
    assert (await harness.ask().done()).status == 200
    await slow.done()
    assert (slow.status, slow.error["code"]) == (408, "request_timeout")
    assert slow.headers["connection"] == "close"
    assert "0.05 s" in slow.error["message"]
    assert harness.is_empty()


async def test_a_drain_refuses_new_requests_and_lets_those_inside_finish() -> None:
    gate = asyncio.Event()

    async def gated(call: UpstreamRequest, send: Send) -> None:
        await gate.wait()
        await fine(call, send)

    harness = ProxyHarness(gated)
    running = harness.ask()
    await until(lambda: bool(harness.relay.calls))
    harness.admission.draining = True
    refused = await harness.ask().done()
    assert (refused.status, refused.error["code"]) == (503, "draining")
    assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
    gate.set()
    assert (await running.done()).status == 200
    await harness.admission.idle()


async def test_the_end_of_a_drain_cuts_what_runs_and_tells_who_has_no_answer_yet() -> None:
    harness = ProxyHarness(hang, places=1)
    held, queued = harness.ask(), harness.ask()
    await until(lambda: harness.admission.admitted == 2 and bool(harness.relay.calls))
    assert harness.proxy.cancel_running() == 2
    assert harness.relay.cancelling
    for asked in (await held.done(), await queued.done()):
        assert (asked.status, asked.error["code"]) == (503, "draining")
    assert harness.answered() == {("m", "503"): 2}
    assert harness.is_empty()


async def test_the_end_of_a_drain_leaves_a_half_answer_open_so_that_the_connection_closes() -> None:
    async def half(call: UpstreamRequest, send: Send) -> None:
        await begun(call, send)
        await hang(call, send)

    harness = ProxyHarness(half)
    asked = harness.ask()
    await until(lambda: len(asked.messages) == 2)
    harness.proxy.cancel_running()
    await asked.done()
    assert not asked.complete
    assert harness.answered() == {("m", "200"): 1}


async def test_a_cut_of_an_idle_gateway_cuts_nothing() -> None:
    assert ProxyHarness().proxy.cancel_running() == 0


async def test_the_engine_gets_the_body_the_query_and_end_to_end_headers_as_they_came() -> None:
    harness = ProxyHarness()
    raw = b'{ "model" : "m",\n"n": 1e0, "prompt":"\\u00e9" }'
    headers = [("X-Request-ID", "mine"), ("Content-Length", str(len(raw))), ("X-Custom", "caf\xe9")]
    await harness.ask(raw, headers=headers, query="a=%2F&b=+&a").done()
    [call] = harness.relay.calls
    assert (call.path, call.query, call.body, call.model) == ("/v1/completions", "a=%2F&b=+&a", raw, "m")
    sent = dict(call.headers)
    assert sent[b"x-request-id"] == b"mine"
    assert sent[b"x-custom"] == b"caf\xe9"
    assert b"content-length" not in sent


LOGIN = [
    ("Authorization", "Bearer client-secret"), ("Cookie", "session=client-secret"),
    ("X-Api-Key", "client-secret"), ("Api-Key", "client-secret"), ("Proxy-Authorization", "client-secret"),
    ("X-Forwarded-Access-Token", "client-secret"), ("X-Auth-Request-Access-Token", "client-secret"),
]  # fmt: skip


async def test_no_credential_of_a_client_reaches_an_engine(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("client-secret\n")
    harness = ProxyHarness(keys=tmp_path / "keys")
    assert (await harness.ask(headers=[*LOGIN, ("X-Kept", "1")]).done()).status == 200
    [call] = harness.relay.calls
    assert "client-secret" not in str(call.headers)
    assert (b"x-kept", b"1") in call.headers


async def test_engines_are_shown_the_gateway_s_own_key(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("gateway-key\n")
    harness = ProxyHarness(backend_keys=KeyFile(tmp_path / "own", "--backend-key-file"))
    await harness.ask(headers=LOGIN).done()
    (tmp_path / "own").write_text("next-key\n")
    await harness.ask(headers=LOGIN).done()
    shown = [
        value for call in harness.relay.calls for name, value in call.headers if name == b"authorization"
    ]
    assert shown == [b"Bearer gateway-key", b"Bearer next-key"]


async def test_an_engine_is_told_the_prices_of_the_gateway_and_never_those_of_a_client() -> None:
    forged, asks = ("X-Mambaserve-Prices", "EUR device-hour=0.0"), ("X-Mambaserve-Cost", "1")
    priced = ProxyHarness(prices=Prices("CHF", device_hour=2.0).with_models(["m:output-tokens=0.5"]))
    for headers in ([forged], [forged, asks]):
        assert (await priced.ask(headers=headers).done()).status == 200
    free = ProxyHarness()
    assert (await free.ask(headers=[forged, asks]).done()).status == 200
    shown = [
        [value for name, value in call.headers if name.lower() == PRICES_HEADER]
        for call in (*priced.relay.calls, *free.relay.calls)
    ]
    assert shown == [[], [b"CHF output-tokens=0.5"], []]


async def test_no_trace_is_made_up_by_a_gateway_that_records_none() -> None:
    harness = ProxyHarness()
    for given in ([], [("traceparent", "00-zz-1-1"), ("tracestate", "vendor=1")]):
        await harness.ask(headers=given).done()
    assert [call.trace.traceparent() for call in harness.relay.calls] == ["", ""]
    assert not any(b"tracestate" in dict(call.headers) for call in harness.relay.calls)


@pytest.mark.parametrize("flag", ["00", "01"])
async def test_the_trace_of_a_client_and_its_decision_go_to_the_engine_as_they_came(flag: str) -> None:
    harness = ProxyHarness()
    parent, vendor = f"00-{'a' * 32}-{'b' * 16}-{flag}", ("tracestate", "vendor=1")
    await harness.ask(headers=[("traceparent", parent), vendor]).done()
    [call] = harness.relay.calls
    assert call.trace.traceparent() == parent
    assert (b"tracestate", b"vendor=1") in call.headers


async def test_what_waits_for_its_turn_fails_or_is_refused_is_a_span_of_the_request() -> None:
    async def fails(_call: UpstreamRequest, _send: Send) -> None:
        raise NoEndpoint("none", retry_after=2)

    kept = KeptSpans()
    harness = ProxyHarness(fails, tracing=tracing_to(kept, ratio=0.0))
    await harness.ask().done()
    await harness.ask({"model": 7}).done()  # the client's own fault is no reason to keep it
    assert parents(kept.spans) == {"POST /v1/completions": "", "gateway.queue": "POST /v1/completions"}
    [root] = kept.named("POST /v1/completions")
    assert root.attributes
    assert (root.attributes["http.response.status_code"], root.attributes["error.type"]) == (503, "503")
    assert root.attributes["gen_ai.request.model"] == "m"


async def test_the_wait_for_the_first_byte_decides_what_is_slow_and_comments_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr("time.monotonic", clock)

    async def late(call: UpstreamRequest, send: Send) -> None:
        await asyncio.sleep(json.loads(call.body)["after"])
        await fine(call, send)

    kept = KeptSpans()
    harness = ProxyHarness(
        late, tracing=tracing_to(kept, ratio=0.0, slow_after=10.0, clock=clock), comment_interval=3.0
    )
    for after in (9, 11):
        await harness.ask({"model": "m", "stream": True, "after": after}).done(60)
    assert [len(spans) for spans in kept.requests] == [2]
    exemplars = [
        sample.exemplar.labels["trace_id"]
        for family in harness.metrics.registry.collect()
        for sample in family.samples
        if sample.exemplar
    ]
    assert exemplars == [f"{kept.spans[0].context.trace_id:032x}"] * 2  # duration and time to first byte


async def test_many_requests_at_once_with_every_end_leave_nothing_and_are_each_counted_once() -> None:
    rng = Random(4)

    async def any_end(call: UpstreamRequest, send: Send) -> None:
        number = json.loads(call.body)["number"]
        await asyncio.sleep(rng.uniform(0, 0.01))
        if number % 5 == 0:
            raise NoEndpoint("none", retry_after=2)
        await begun(call, send)
        if number % 5 == 1:
            raise ResponseTruncated
        await asyncio.sleep(rng.uniform(0, 0.01))
        await send({"type": "http.response.body", "body": b"}"})

    harness = ProxyHarness(any_end, places=4, queue=100)
    crowd = [harness.ask({"model": "m", "number": number}) for number in range(60)]
    for number, asked in enumerate(crowd):
        if number % 5 == 2:
            asked.leave()
    await asyncio.gather(*(asked.done() for asked in crowd))
    counted = harness.answered()
    assert sum(counted.values()) == 60
    assert counted["m", "503"] == 12
    assert counted.get(("m", "499"), 0) == harness.count("mambaserve_gateway_cancelled_total")
    assert harness.is_empty()


async def test_a_cut_reaches_a_client_that_is_still_sending_its_body() -> None:
    harness = ProxyHarness()
    asked = harness.asked().part(b'{"model": ')
    await until(lambda: harness.admission.admitted == 1)
    await asyncio.sleep(0)
    assert harness.proxy.cancel_running() == 1
    await asked.done()
    assert (asked.status, asked.error["code"]) == (503, "draining")
    assert harness.relay.calls == []
    assert harness.answered() == {("unknown", "503"): 1}
    assert harness.is_empty()


async def test_a_server_that_cancels_a_request_in_its_body_leaves_nothing() -> None:
    harness = ProxyHarness()
    asked = harness.asked().part(b'{"model": ')
    await until(lambda: harness.admission.admitted == 1)
    asked.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked.done()
    assert asked.messages == []
    assert harness.is_empty()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


def engine_says(body: bytes) -> InvalidRequest:
    """Return the error of the engine's API for the same body."""
    try:
        fields = parse_json_object(body)
        CompletionRequest.model_validate(fields)
    except InvalidRequest as error:
        return error
    except ValidationError as error:
        return invalid(error.errors())
    raise AssertionError("the engine takes it")


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"", b" \n", b"[1]", b'"x"', b"null", b"\xff", b'{"a": NaN}', b'{"model": "m",}', b"[" * 999,
        b'{"prompt": "x", "model": ["m"]}', b'{"prompt": "x", "model": "m", "stream": [1]}',
    ],
)  # fmt: skip
async def test_a_body_without_sense_is_refused_in_the_words_of_the_engine(body: bytes) -> None:
    asked = await ProxyHarness().ask(body).done()
    wanted = engine_says(body)
    assert asked.status == wanted.status
    assert asked.error == json.loads(wanted.envelope())["error"]


HOSTILE = {
    "numbers": b'{"model": "m", "prompt": [' + b"-1," * 300_000 + b"-1]}",
    "objects": b'{"model": "m", "messages": [' + b"{}," * 300_000 + b"{}]}",
    "depth": b'{"model": "m", "x": ' + b"[" * 400_000 + b"]" * 400_000 + b"}",
    "keys": b"{" + b'"model":"m",' * 80_000 + b'"a":1}',
    "no end": b'{"model": "m", "prompt": [' + b"-1," * 300_000,
    "a name": b'{"model": "' + b"x" * 900_000 + b'"}',
}


@pytest.mark.parametrize("how", HOSTILE)
async def test_a_hostile_body_costs_no_more_than_its_size(how: str) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidRequest):
            routing_fields(HOSTILE[how])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Nothing is made of what is skipped; objects made of it all would be ten times its size.
    assert peak < 1.5 * len(HOSTILE[how])


async def test_each_request_has_a_line_in_the_log_and_none_of_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    harness = ProxyHarness()
    with capture_logs() as lines:
        await harness.ask({"model": "m", "prompt": "a private matter"}, query="key=private").done()
        await harness.ask({"model": "x" * 500, "prompt": "a private matter"}).done()
    assert [(line["log_level"], line["status"]) for line in lines] == [("info", 200)] * 2
    assert [line["model"] for line in lines] == ["m", "x" * 128]
    assert "private" not in str(lines)
