"""Engines die, refuse, hang and come back; clients leave and dawdle: nothing is lost, nothing hangs."""

import asyncio
import json
import os
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web

from matrix_size import LARGE

BODY = {"model": "m", "prompt": "x"}
STREAM = {**BODY, "stream": True}


async def started_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def hang(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def die_at_once(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_the_engine_s_request_at_once(
    stream, engine, gateway, client, eventually
) -> None:
    left: list[float] = []

    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            response = await started_stream(request)
            await response.write(b"data: 1\n\n")
        return await hang(request, body)

    fake = await engine(handler=endless)
    through = await gateway(fake)
    body = {**BODY, "stream": stream}
    request = asyncio.create_task(_read_first(client, through.url, body))
    await eventually(lambda: fake.active == 1)
    await asyncio.sleep(0.05)
    left.append(asyncio.get_running_loop().time())
    request.cancel()
    await eventually(lambda: fake.cancelled)
    assert fake.cancelled[0] - left[0] < 0.5
    await asyncio.gather(request, return_exceptions=True)
    await eventually(lambda: fake.active == 0)
    seen = await through.metrics(client)
    assert seen["mambaserve_gateway_cancelled_total"] == 1
    assert seen["mambaserve_gateway_in_flight"] == 0


async def _read_first(client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with client.post(f"{url}/v1/completions", json=body) as response:
        while await response.content.readany():
            pass


async def test_a_client_that_leaves_while_it_is_held_leaves_nothing_behind(
    engine, gateway, client, eventually
) -> None:
    fake = await engine(ready=False)
    through = await gateway(fake, hold_timeout=30)
    request = asyncio.create_task(_read_first(client, through.url, BODY))
    await asyncio.sleep(0.1)
    assert (await through.metrics(client))["mambaserve_gateway_held"] == 1
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await asyncio.sleep(0.1)
    assert (await through.metrics(client))["mambaserve_gateway_held"] == 0
    assert fake.seen == []


async def test_an_unreachable_engine_is_passed_over(engine, gateway, client) -> None:
    one, two = await engine("a"), await engine("b")
    through = await gateway(one, two, probe_interval=30)
    await one.kill()
    for _ in range(10):
        async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
            assert response.status == 200
    assert len(two.seen) == 10
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_retries_total{reason="unreachable"}'] <= 1


@pytest.mark.parametrize("status", [502, 503] if LARGE else [503])
async def test_an_engine_that_refuses_is_passed_over(status, engine, gateway, client) -> None:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status)

    one, two = await engine("a", handler=refuse), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 200
    assert (len(one.seen), len(two.seen)) == (1, 1)


@pytest.mark.parametrize("status", [400, 422, 500] if LARGE else [422, 500])
async def test_other_statuses_are_the_answer_and_not_retried(status, engine, gateway, client) -> None:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, text="said")

    one, two = await engine("a", handler=refuse), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == status
        assert await response.text() == "said"
    assert (len(one.seen), len(two.seen)) == (1, 0)


@pytest.mark.parametrize("status", [401, 403, 404, 429] if LARGE else [404, 429])
async def test_what_one_engine_alone_refuses_another_one_answers(status, engine, gateway, client) -> None:
    one, two = await engine("a", handler=refusing(status)), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 200
    assert (len(one.seen), len(two.seen)) == (1, 1)


@pytest.mark.parametrize("status", [401, 404, 429] if LARGE else [401])
async def test_what_all_engines_refuse_goes_to_the_client(status, engine, gateway, client) -> None:
    engines = [await engine(str(n), handler=refusing(status)) for n in range(2)]
    through = await gateway(*engines)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == status
        assert await response.text() == "said"
    assert [len(one.seen) for one in engines] == [1, 1]


def refusing(status: int) -> Any:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, text="said")

    return refuse


@pytest.mark.parametrize(
    ("status", "most_refused"), [(429, 0), (404, 0), (400, 10)] if LARGE else [(429, 0), (400, 10)]
)
async def test_an_engine_that_rejects_everything_at_once_does_not_draw_the_traffic(
    status, most_refused, engine, gateway, client
) -> None:
    bad = await engine("a", handler=refusing(status))
    through = await gateway(bad, await engine("b", delay=0.1), await engine("c", delay=0.1))
    statuses: list[int] = []

    async def clients_of_one() -> None:
        for _ in range(12):
            async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
                statuses.append(response.status)

    await asyncio.gather(*(clients_of_one() for _ in range(8)))
    assert len(statuses) - statuses.count(200) <= most_refused
    seen = await through.metrics(client)
    name = bad.url.removeprefix("http://")
    labels = f'endpoint="{name}",outcome="rejected"'
    assert seen[f"mambaserve_gateway_endpoint_attempts_total{{{labels}}}"] == len(bad.seen) > 0


async def test_too_many_forms_of_one_client_neither_fill_an_engine_nor_go_to_another(
    engine, gateway, client
) -> None:
    async def judge(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        refused = body["prompt"] == "slow"
        return web.Response(status=429 if refused else 200, headers={"X-Mambaserve-Limit": "forms"})

    preferred, other = await engine("a", handler=judge), await engine("b", running=5)
    through = await gateway(preferred, other)
    for prompt, status in (("slow", 429),) * 5 + (("quick", 200),):
        async with client.post(f"{through.url}/v1/completions", json={**BODY, "prompt": prompt}) as response:
            assert response.status == status
    assert (len(preferred.seen), len(other.seen)) == (6, 0)
    seen = await through.metrics(client)
    refusals = {
        name: value for name, value in seen.items() if "requests_total" in name and 'code="429"' in name
    }
    assert ['reason="key_limit"' in name for name in refusals] == [True]
    assert list(refusals.values()) == [5]


async def test_a_client_that_makes_mistakes_takes_no_engine_away_from_others(engine, gateway, client) -> None:
    async def judge(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=400 if body["prompt"] == "wrong" else 200)

    engines = [await engine(str(n), handler=judge) for n in range(3)]
    through = await gateway(*engines)
    for number in range(40):
        body = {**BODY, "prompt": "wrong" if number % 10 else "right"}
        async with client.post(f"{through.url}/v1/completions", json=body) as response:
            assert response.status == (400 if number % 10 else 200)
    seen = await through.metrics(client)
    assert all(value == 0 for name, value in seen.items() if "endpoint_ejected" in name)


async def test_an_engine_that_dies_before_the_first_byte_is_replaced(engine, gateway, client) -> None:
    one, two = await engine("a", handler=die_at_once), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=STREAM) as response:
        assert response.status == 200
        assert (await response.read()).endswith(b"[DONE]\n\n")
    assert (len(one.seen), len(two.seen)) == (1, 1)


async def test_headers_without_a_first_event_still_allow_another_engine(engine, gateway, client) -> None:
    async def headers_only(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await started_stream(request)
        return await die_at_once(request, body)

    one, two = await engine("a", handler=headers_only), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=STREAM) as response:
        assert (await response.read()).endswith(b"[DONE]\n\n")
    assert len(one.seen) == 1


async def test_a_request_that_kills_engines_does_not_go_round_the_whole_pool(engine, gateway, client) -> None:
    engines = [await engine(str(n), handler=die_at_once) for n in range(5)]
    through = await gateway(*engines, max_attempts=5)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 502
        assert (await response.json())["error"]["code"] == "upstream_died"
    assert sum(len(one.seen) for one in engines) == 2


async def test_refusals_everywhere_end_after_the_allowed_attempts_with_the_last_answer(
    engine, gateway, client
) -> None:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=503, text="busy", headers={"Retry-After": "9"})

    engines = [await engine(str(n), handler=refuse) for n in range(5)]
    through = await gateway(*engines, max_attempts=3)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "9"
        assert await response.text() == "busy"
    assert sum(len(one.seen) for one in engines) == 3


async def test_a_stream_that_breaks_off_ends_with_an_error_event(engine, gateway, client) -> None:
    async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await started_stream(request)
        await response.write(b'data: {"n": 1}\n\ndata: {"n": 2}\n\ndata: {"half')
        await asyncio.sleep(0.1)
        return await die_at_once(request, body)

    one, two = await engine("a", handler=breaks), await engine("b", running=5)
    through = await gateway(one, two)
    async with client.post(f"{through.url}/v1/completions", json=STREAM) as response:
        got = await response.read()
    events = [json.loads(part.removeprefix(b"data: ")) for part in got.split(b"\n\n")[:-2]]
    assert got.endswith(b"data: [DONE]\n\n")
    assert events[:2] == [{"n": 1}, {"n": 2}]
    assert events[2]["error"]["code"] == "upstream_died"
    assert len(events) == 3
    assert two.seen == []
    assert (await through.metrics(client))["mambaserve_gateway_broken_streams_total"] == 1


async def test_a_json_answer_that_breaks_off_closes_the_connection(engine, gateway, client) -> None:
    async def breaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"half": ')
        await asyncio.sleep(0.1)
        return await die_at_once(request, body)

    through = await gateway(await engine(handler=breaks))
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    async with client.get(f"{through.url}/readyz") as alive:
        assert alive.status == 200


async def test_a_killed_engine_ends_its_streams_and_spares_the_others(
    engine, gateway, client, eventually
) -> None:
    one, two = await engine("a"), await engine("b")
    through = await gateway(one, two)

    async def read() -> bytes:
        body = {**STREAM, "max_tokens": 40, "gap": 0.02}
        async with client.post(f"{through.url}/v1/completions", json=body) as response:
            return await response.read()

    readers = [asyncio.create_task(read()) for _ in range(10)]
    await eventually(lambda: one.active == 5 and two.active == 5)
    await asyncio.sleep(0.2)
    await one.kill()
    async with asyncio.timeout(10):
        got = await asyncio.gather(*readers)
    assert sum(b'"upstream_died"' in text for text in got) == 5
    assert all(text.endswith(b"[DONE]\n\n") for text in got)


async def test_all_engines_down_is_503_with_retry_after_and_the_reason(engine, gateway, client) -> None:
    one, two = await engine("a"), await engine("b", ready=False)
    through = await gateway(one, two, hold_timeout=0.2)
    await one.kill()
    begin = asyncio.get_running_loop().time()
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 503
        assert int(response.headers["Retry-After"]) >= 1
        error = (await response.json())["error"]
    assert asyncio.get_running_loop().time() - begin < 2
    assert error["code"] == "no_ready_endpoint"
    assert "loading" in error["message"]
    assert two.seen == []


async def test_a_request_waits_for_an_engine_that_becomes_ready(engine, gateway, client) -> None:
    fake = await engine(ready=False)
    through = await gateway(fake, hold_timeout=10)
    request = asyncio.create_task(_status(client, through.url))
    await asyncio.sleep(0.2)
    assert not request.done()
    fake.ready = True
    async with asyncio.timeout(3):
        assert await request == 200


async def test_a_request_outlives_the_restart_of_the_only_engine(engine, gateway, client) -> None:
    fake = await engine()
    through = await gateway(fake, hold_timeout=10)
    await fake.kill()
    request = asyncio.create_task(_status(client, through.url))
    await asyncio.sleep(0.3)
    await fake.start()
    async with asyncio.timeout(5):
        assert await request == 200


async def _status(client: aiohttp.ClientSession, url: str) -> int:
    async with client.post(f"{url}/v1/completions", json=BODY) as response:
        return response.status


async def test_an_engine_that_drains_gets_nothing_new_and_finishes_what_it_has(
    engine, gateway, client, wait_ready, eventually
) -> None:
    one, two = await engine("a"), await engine("b", running=50)
    through = await gateway(one, two)

    async def read() -> bytes:
        body = {**STREAM, "max_tokens": 30, "gap": 0.02}
        async with client.post(f"{through.url}/v1/completions", json=body) as response:
            return await response.read()

    running = asyncio.create_task(read())
    await eventually(lambda: one.active == 1)
    one.ready, one.reason = False, "draining"
    await wait_ready(through, 1)
    seen = await through.metrics(client)
    name = one.url.removeprefix("http://")
    assert seen[f'mambaserve_gateway_endpoint_draining{{endpoint="{name}"}}'] == 1
    for _ in range(3):
        assert await _status(client, through.url) == 200
    assert (len(one.seen), len(two.seen)) == (1, 3)
    assert (await running).endswith(b"[DONE]\n\n")


async def test_a_silent_engine_ends_in_504_or_in_an_error_event(engine, gateway, client) -> None:
    async def one_event(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not body.get("stream"):
            return await hang(request, body)
        response = await started_stream(request)
        await response.write(b"data: 1\n\n")
        return await hang(request, body)

    through = await gateway(await engine(handler=one_event), idle_timeout=0.2)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 504
    async with client.post(f"{through.url}/v1/completions", json=STREAM) as response:
        got = await response.read()
    assert got.startswith(b"data: 1\n\n")
    assert b'"upstream_silent"' in got


async def test_a_request_that_outlives_its_time_ends_in_504_or_in_an_error_event(
    engine, gateway, client, eventually
) -> None:
    fake = await engine()
    through = await gateway(fake, request_timeout=0.3)
    async with client.post(f"{through.url}/v1/completions", json={**BODY, "gap": 5}) as response:
        assert response.status == 504
        assert (await response.json())["error"]["code"] == "request_timeout"
    endless = {**STREAM, "max_tokens": 1000, "gap": 0.02}
    async with client.post(f"{through.url}/v1/completions", json=endless) as response:
        got = await response.read()
    assert got.startswith(b"data: ")
    assert b'"request_timeout"' in got.split(b"\n\n")[-3]
    await eventually(lambda: fake.active == 0)


async def test_a_json_answer_that_outlives_its_time_closes_the_connection(engine, gateway, client) -> None:
    async def half(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"{")
        return await hang(request, body)

    through = await gateway(await engine(handler=half), request_timeout=0.2)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_client_that_does_not_read_cannot_keep_a_request_beyond_its_time(
    engine, gateway, client, eventually
) -> None:
    async def flood(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = await started_stream(request)
        while True:
            await response.write(b"data: " + b"x" * 65_000 + b"\n\n")

    fake = await engine(handler=flood)
    through = await gateway(fake, request_timeout=0.5)
    response = await client.post(f"{through.url}/v1/completions", json=STREAM)
    await eventually(lambda: fake.active == 1)
    await eventually(lambda: fake.active == 0, 8)
    assert (await through.metrics(client))["mambaserve_gateway_in_flight"] == 0
    response.close()


async def test_a_full_house_is_429_with_retry_after(engine, gateway, client, eventually) -> None:
    fake = await engine(handler=hang)
    through = await gateway(fake, max_in_flight=2, max_queue=1, drain_timeout=0.1)
    waiting = [asyncio.create_task(_status(client, through.url)) for _ in range(3)]
    await eventually(lambda: fake.active == 2)
    await asyncio.sleep(0.05)
    async with client.post(f"{through.url}/v1/completions", json=BODY) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
    seen = await through.metrics(client)
    assert seen["mambaserve_gateway_in_flight"] == 2
    assert seen["mambaserve_gateway_queued"] == 1
    assert fake.most_active == 2
    for request in waiting:
        request.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_place_that_does_not_come_free_in_time_is_429(engine, gateway, client, eventually) -> None:
    fake = await engine(handler=hang)
    through = await gateway(fake, max_in_flight=1, max_queue=5, queue_timeout=0.1, drain_timeout=0.1)
    first = asyncio.create_task(_status(client, through.url))
    await eventually(lambda: fake.active == 1)
    assert await _status(client, through.url) == 429
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    fake.handler = None
    await eventually(lambda: fake.active == 0)
    assert await _status(client, through.url) == 200


async def test_a_slow_client_slows_the_engine_and_memory_stays_bounded(engine, gateway, client) -> None:
    sent = 0
    total = 200 * 1024 * 1024

    async def flood(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        response = await started_stream(request)
        piece = b"data: " + b"x" * 65_000 + b"\n\n"
        while sent < total:
            await response.write(piece)
            sent += len(piece)
        return response

    through = await gateway(await engine(handler=flood), drain_timeout=0.1)
    before = psutil.Process(os.getpid()).memory_info().rss
    response = await client.post(f"{through.url}/v1/completions", json=STREAM)
    await asyncio.sleep(1.0)
    grown = psutil.Process(os.getpid()).memory_info().rss - before
    # Kernel buffers of two connections hold some megabytes; what counts is that it stops there.
    assert sent < 40 * 1024 * 1024
    assert grown < 60 * 1024 * 1024
    stopped = sent
    await asyncio.sleep(0.3)
    assert sent == stopped
    response.close()


async def test_a_gateway_without_an_engine_is_ready_and_says_503_to_requests(gateway, client) -> None:
    through = await gateway(backend=("http://127.0.0.1:1",), wait=False, hold_timeout=0.1)
    async with client.get(f"{through.url}/readyz") as response:
        assert response.status == 200
        assert (await response.json())["endpoints"] == {"known": 1, "ready": 0}
    assert await _status(client, through.url) == 503
    async with client.get(f"{through.url}/openapi.json") as response:
        assert response.status == 200


async def test_a_client_that_reads_nothing_is_cut_and_its_request_ends_in_the_engine(
    engine, gateway, client, eventually
) -> None:
    fake = await engine(handler=flood_for_ever)
    through = await gateway(fake, read_nothing_timeout=1.0)
    response = await client.post(f"{through.url}/v1/completions", json=STREAM)
    begin = asyncio.get_running_loop().time()
    await eventually(lambda: bool(fake.cancelled), 60)
    # The clock of these tests begins at zero and adds fractions.
    assert 0.99 < fake.cancelled[0] - begin < 6
    assert (await through.metrics(client))["mambaserve_gateway_in_flight"] == 0
    response.close()


async def flood_for_ever(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    response = await started_stream(request)
    while True:
        await response.write(b"data: " + b"x" * 65_000 + b"\n\n")
