"""Prompts go to prefill engines and answers to decode engines; whatever fails between costs no answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from matrix_size import LARGE

HEADER, PEER = "X-Mambaserve-Hand-Over", "X-Mambaserve-Peer"
LONG = {"model": "m", "prompt": "x" * 4000, "max_tokens": 2}
STREAM = {**LONG, "stream": True}


def long_prompt(number: int) -> dict[str, Any]:
    """Return a request whose prompt no engine has seen."""
    return {**LONG, "prompt": f"{number:04}" * 1000}


EXPORTED = "address=127.0.0.1:7001;incarnation=p;export=e1;depth=992"
FETCHED = "address=127.0.0.1:7001;incarnation=p;depth=992"


def moves(role: str, *, incarnation: str = "p", places: int = 4) -> dict[str, Any]:
    return {"address": "127.0.0.1:7001", "incarnation": incarnation, "role": role, "credits": places}


def exported(depth: int = 992, **more: Any) -> dict[str, Any]:
    fields = {
        "address": "127.0.0.1:7001",
        "incarnation": "p",
        "export": "e1" if depth else "",
        "depth": depth,
    }
    counts = {"prompt_tokens": 1000, "cached_tokens": 0, "lease_seconds": 30}
    return {"handover": {**fields, **counts, **more}}


async def exports(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response(exported())


async def dies(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()
    raise AssertionError


async def dies_amid_its_answer(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "200"})
    await response.prepare(request)
    await response.write(b'{"handover": {"addr')
    return await dies(request, _body)


async def hangs(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def refuses(status: int, **headers: str) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "said", "type": "invalid_request_error", "param": None, "code": None}
        return web.json_response({"error": error}, status=status, headers=headers)

    return refuse


def says(**document: Any) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def say(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(document)

    return say


async def send(
    client: aiohttp.ClientSession, url: str, body: dict[str, Any], **headers: str
) -> tuple[int, str, Any]:
    """Return status, text and headers of an answer that was read to its end."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.post(f"{url}/v1/completions", json=body, headers=names) as response:
        return response.status, await response.text(), response.headers


def sources(engine: Any) -> list[tuple[str | None, str | None]]:
    """Return the values of both headers of each request that the engine got."""
    return [(request.headers.get(HEADER), request.headers.get(PEER)) for request in engine.seen]


async def pools(engine: Any, *, prefill: Any = exports, decode: Any = None, **more: Any) -> tuple[Any, Any]:
    """Start one engine of each role."""
    return (
        await engine("p", handler=prefill, transfer=moves("prefill"), **more),
        await engine("d", handler=decode, transfer=moves("decode", incarnation="d")),
    )


@pytest.mark.parametrize("stream", [True, False])
async def test_a_long_prompt_is_computed_by_a_prefill_engine_and_answered_by_a_decode_engine(
    stream, engine, gateway, client
) -> None:
    prefill, decode = await pools(engine)
    through = await gateway(prefill, decode)
    body = {**LONG, "stream": stream}
    status, text, _ = await send(client, through.url, body)
    assert status == 200
    assert text.endswith("data: [DONE]\n\n") if stream else json.loads(text)["choices"][0]["text"] == "tt"
    assert sources(prefill) == [("export", None)]
    assert sources(decode) == [(EXPORTED, None)]
    assert prefill.bodies == decode.bodies == [json.dumps(body).encode()]
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_hand_overs_total{outcome="computed"}'] == 1
    assert seen["mambaserve_gateway_prefill_seconds_count"] == 1
    assert seen["mambaserve_gateway_in_flight"] == 0


async def test_a_short_prompt_goes_to_a_decode_engine_alone(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, {**LONG, "prompt": "short"}))[0] == 200
    assert prefill.seen == []
    assert sources(decode) == [(None, None)]
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_prefilled_by_decode_total{reason="short"}'] == 1


async def test_the_number_of_tokens_that_is_long_is_a_setting(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    through = await gateway(prefill, decode, hand_over_tokens=2000)
    assert (await send(client, through.url, LONG))[0] == 200
    assert prefill.seen == []


async def test_a_prefill_engine_answers_no_client(engine, gateway, client) -> None:
    prefill, _ = await pools(engine)
    unified = await engine("u", running=50)
    through = await gateway(prefill, unified)
    for prompt in ("x" * 4000, "short"):
        assert (await send(client, through.url, {**LONG, "prompt": prompt}))[0] == 200
    assert prefill.seen == []
    assert sources(unified) == [(None, None)] * 2


async def test_headers_of_a_client_by_which_states_move_do_not_pass(engine, gateway, client) -> None:
    unified = await engine("u", transfer=moves("unified"))
    through = await gateway(unified)
    forged = {HEADER: "export", PEER: FETCHED}
    assert (await send(client, through.url, LONG, **forged))[0] == 200
    assert sources(unified) == [(None, None)]


async def test_a_prompt_without_a_state_is_computed_by_the_decode_engine(engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=says(**exported(0)))
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, LONG))[0] == 200
    assert sources(decode) == [(None, None)]
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_prefilled_by_decode_total{reason="nothing"}'] == 1


@pytest.mark.parametrize("status", [400, 413, 422] if LARGE else [422])
async def test_a_mistake_of_the_client_that_a_prefill_engine_sees_is_the_answer(
    status, engine, gateway, client
) -> None:
    prefill, decode = await pools(engine, prefill=refuses(status))
    through = await gateway(prefill, decode)
    answered, text, _ = await send(client, through.url, STREAM)
    assert (answered, json.loads(text)["error"]["message"]) == (status, "said")
    assert decode.seen == []
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_hand_overs_total{outcome="rejected"}'] == 1
    assert seen["mambaserve_gateway_in_flight"] == 0


async def test_a_client_over_its_own_limit_is_told_so_by_the_prefill_engine(engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=refuses(429, **{"x-mambaserve-limit": "forms"}))
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, LONG))[0] == 429
    assert decode.seen == []


FAILURES = {
    "dies": dies,
    "dies amid its answer": dies_amid_its_answer,
    "fails": refuses(500),
    "drains": refuses(503),
    "is full": refuses(429),
    "answers no hand-over": says(choices=[]),
    "names no address": says(**exported(address="here")),
    "names no export": says(**exported(export="a;b")),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_prefill_engine_that_fails_costs_no_answer(failure, engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=FAILURES[failure])
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, STREAM))[0] == 200
    assert len(prefill.seen) == 1
    assert sources(decode) == [(None, None)]
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_prefilled_by_decode_total{reason="failed"}'] == 1
    assert seen["mambaserve_gateway_in_flight"] == 0


@pytest.mark.parametrize("failure", FAILURES if LARGE else ("dies amid its answer", "drains"))
async def test_another_prefill_engine_computes_the_prompt(failure, engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=FAILURES[failure])
    other = await engine("q", handler=exports, transfer=moves("prefill"), running=5)
    through = await gateway(prefill, decode, other)
    assert (await send(client, through.url, STREAM))[0] == 200
    assert (len(prefill.seen), len(other.seen)) == (1, 1)
    assert sources(decode) == [(EXPORTED, None)]


@pytest.mark.parametrize("status", [401, 403, 404] if LARGE else [404])
async def test_a_refusal_that_rather_speaks_of_the_prefill_engine_does_not_reach_the_client(
    status, engine, gateway, client
) -> None:
    prefill, decode = await pools(engine, prefill=refuses(status))
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, LONG))[0] == 200
    assert sources(decode) == [(None, None)]


async def test_a_prefill_engine_that_rejects_what_others_take_is_left_out(engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=refuses(400))
    through = await gateway(prefill, decode)
    statuses = [(await send(client, through.url, long_prompt(number)))[0] for number in range(12)]
    assert statuses == [400] * 2 + [200] * 10
    assert len(prefill.seen) == 5


async def test_a_prefill_engine_that_hangs_is_given_up(engine, gateway, client) -> None:
    prefill, decode = await pools(engine, prefill=hangs, lives=False)
    through = await gateway(prefill, decode, silence_timeout=0.3, probe_interval=30)
    assert (await send(client, through.url, STREAM))[0] == 200
    assert sources(decode) == [(None, None)]
    assert prefill.cancelled


async def test_a_prefill_engine_that_is_away_is_passed_over(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    through = await gateway(prefill, decode, probe_interval=30)
    await prefill.kill()
    for number in range(3):
        assert (await send(client, through.url, long_prompt(number)))[0] == 200
    assert sources(decode) == [(None, None)] * 3
    seen = await through.metrics(client)
    assert seen['mambaserve_gateway_prefilled_by_decode_total{reason="failed"}'] == 1
    assert seen['mambaserve_gateway_prefilled_by_decode_total{reason="no_engine"}'] == 2


async def test_a_decode_engine_alone_serves_until_a_prefill_engine_comes(
    engine, gateway, client, wait_ready
) -> None:
    prefill, decode = await pools(engine, ready=False)
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, long_prompt(1)))[0] == 200
    prefill.ready = True
    await wait_ready(through, 2)
    assert (await send(client, through.url, long_prompt(2)))[0] == 200
    assert sources(decode) == [(None, None), (EXPORTED, None)]


async def test_a_request_is_held_while_only_prefill_engines_are_ready(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    decode.ready = False
    through = await gateway(prefill, decode)
    status, text, _ = await send(client, through.url, LONG)
    assert (status, json.loads(text)["error"]["code"]) == (503, "no_ready_endpoint")
    assert prefill.seen == decode.seen == []


async def test_the_decode_engine_is_chosen_when_the_prompt_is_computed(
    engine, gateway, client, wait_ready, eventually
) -> None:
    late = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await late.wait()
        return await exports(request, body)

    prefill, decode = await pools(engine, prefill=slow)
    through = await gateway(prefill, decode, hold_timeout=10)
    asked = asyncio.create_task(send(client, through.url, LONG))
    await eventually(lambda: prefill.seen)
    decode.ready = False
    await wait_ready(through, 1)
    late.set()
    await asyncio.sleep(0.1)
    assert not asked.done()
    decode.ready = True
    assert (await asked)[0] == 200
    assert sources(decode) == [(EXPORTED, None)]


async def test_a_decode_engine_that_can_take_a_state_is_preferred(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    decode.transfer = moves("decode", places=0)
    other = await engine("e", running=40, transfer=moves("decode", incarnation="e"))
    through = await gateway(prefill, decode, other)
    assert (await send(client, through.url, LONG))[0] == 200
    assert (decode.seen, sources(other)) == ([], [(EXPORTED, None)])


async def test_a_decode_engine_that_dies_is_followed_by_one_that_fetches_the_same_state(
    engine, gateway, client
) -> None:
    prefill, decode = await pools(engine, decode=dies)
    other = await engine("e", running=40, transfer=moves("decode", incarnation="e"))
    through = await gateway(prefill, decode, other)
    assert (await send(client, through.url, STREAM))[0] == 200
    assert len(prefill.seen) == 1
    assert sources(decode) == [(EXPORTED, None)]
    # The engine that died may have read the export, which can be read once.
    assert sources(other) == [(None, FETCHED)]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_decode_engine_that_refuses_is_followed_by_one_with_the_same_export(
    status, engine, gateway, client
) -> None:
    prefill, decode = await pools(engine, decode=refuses(status))
    other = await engine("e", running=40, transfer=moves("decode", incarnation="e"))
    through = await gateway(prefill, decode, other)
    assert (await send(client, through.url, STREAM))[0] == 200
    assert (len(prefill.seen), sources(other)) == (1, [(EXPORTED, None)])


async def test_a_state_whose_lease_is_over_is_named_without_its_export(
    engine, gateway, client, wait_ready
) -> None:
    prefill, decode = await pools(engine, prefill=says(**exported(lease_seconds=0)))
    through = await gateway(prefill, decode)
    assert (await send(client, through.url, LONG))[0] == 200
    assert sources(decode) == [(None, FETCHED)]


async def test_a_request_on_which_prefill_and_decode_engines_die_ends(engine, gateway, client) -> None:
    prefill = [await engine(f"p{n}", handler=dies, transfer=moves("prefill")) for n in range(3)]
    decode = [await engine(f"d{n}", handler=dies, transfer=moves("decode")) for n in range(3)]
    through = await gateway(*prefill, *decode)
    assert (await send(client, through.url, LONG))[0] == 502
    assert sum(len(one.seen) for one in prefill) == 2
    assert sum(len(one.seen) for one in decode) == 1


@pytest.mark.parametrize("stage", ["prefill", "decode"])
async def test_a_client_that_leaves_cancels_the_engine_that_works_for_it(
    stage, engine, gateway, client, eventually
) -> None:
    prefill, decode = await pools(engine, **{stage: hangs})
    through = await gateway(prefill, decode)
    working = prefill if stage == "prefill" else decode
    request = asyncio.create_task(send(client, through.url, STREAM))
    await eventually(lambda: working.active == 1)
    request.cancel()
    await eventually(lambda: working.cancelled)
    await asyncio.gather(request, return_exceptions=True)
    assert len(decode.seen) == (stage == "decode")
    await eventually(lambda: prefill.active == decode.active == 0)
    seen = await through.metrics(client)
    assert seen["mambaserve_gateway_cancelled_total"] == 1
    assert seen["mambaserve_gateway_in_flight"] == 0


@pytest.mark.parametrize("fate", ["answered", "left", "refused", "dead"])
async def test_a_state_that_no_engine_will_read_is_freed_at_once(
    fate, engine, gateway, client, eventually
) -> None:
    decode_handler = {"answered": None, "left": hangs, "refused": refuses(400), "dead": dies}[fate]
    prefill, decode = await pools(engine, decode=decode_handler)
    through = await gateway(prefill, decode)
    request = asyncio.create_task(send(client, through.url, STREAM))
    if fate == "left":
        await eventually(lambda: decode.active == 1)
        request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    if fate == "answered":
        # An engine that answers has read the state, or has freed it by itself.
        await send(client, through.url, {**LONG, "prompt": "short"})
        assert prefill.released == []
    else:
        await eventually(lambda: prefill.released == ["release=e1"])


async def test_the_longest_life_of_a_request_includes_the_time_at_prefill_engines(
    engine, gateway, client
) -> None:
    prefill, decode = await pools(engine, prefill=hangs)
    through = await gateway(prefill, decode, request_timeout=0.5)
    status, text, _ = await send(client, through.url, LONG)
    assert (status, json.loads(text)["error"]["code"]) == (504, "request_timeout")
    assert prefill.cancelled
    assert decode.seen == []


async def test_the_explanation_shows_both_choices(engine, gateway, client) -> None:
    prefill, decode = await pools(engine)
    through = await gateway(prefill, decode)
    _, _, headers = await send(client, through.url, LONG, X_Mambaserve_Explain="1")
    why = json.loads(headers["X-Mambaserve-Explain"])
    assert why["engine"] == decode.url.removeprefix("http://")
    assert why["handedOver"] == 992
    assert why["prefill"]["engine"] == prefill.url.removeprefix("http://")
    async with client.get(f"{through.url}/v1/routing/decisions") as response:
        listed = [entry["engine"] for entry in (await response.json())["data"]]
    assert listed == [why["engine"], why["prefill"]["engine"]]


async def test_a_client_that_leaves_while_its_prompt_is_computed_is_charged_for_it(
    engine, gateway, client, eventually, tmp_path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret ann\n")
    prefill, decode = await pools(engine, prefill=hangs)
    through = await gateway(prefill, decode, api_key_file=str(keys), tokens_per_minute=1500)
    headers = {"Authorization": "Bearer secret"}
    request = asyncio.create_task(send(client, through.url, LONG, **headers))
    await eventually(lambda: prefill.active == 1)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await eventually(lambda: prefill.active == 0)
    prefill.handler = exports
    assert (await send(client, through.url, LONG, **headers))[0] == 429
