"""The bytes of bodies that the gateway holds are bounded, counted as they come, and let go early."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from eventually import until
from mamba_edge.exchange.request_body import BodyBudget, BodyShare
from mamba_gateway.upstream.connection import PIECE_BYTES
from mamba_gateway.upstream.connector import UpstreamRequest
from proxy_harness import ProxyHarness, fine, hang
from raw_engine import SSE, RawEngine, says


def of_size(size: int) -> bytes:
    empty = json.dumps({"model": "m", "prompt": ""}).encode()
    return json.dumps({"model": "m", "prompt": "x" * (size - len(empty))}).encode()


async def test_bodies_beyond_the_budget_are_refused_while_others_wait_and_taken_afterwards() -> None:
    harness = ProxyHarness(hang, places=9, queue=9, max_held_body_bytes=2000)
    held = [harness.ask(of_size(900)) for _ in range(2)]
    await until(lambda: len(harness.relay.calls) == 2)
    assert harness.bodies.held == 1800
    refused = await harness.ask(of_size(900)).done()
    assert refused.status == 503
    assert int(refused.headers["retry-after"]) >= 1
    await held[0].leave().done()
    harness.relay.script = fine
    assert (await harness.ask(of_size(900)).done()).status == 200
    await held[1].leave().done()
    assert harness.bodies.held == 0
    assert harness.is_empty()


async def test_a_declared_size_that_does_not_fit_is_refused_before_a_byte_is_read() -> None:
    harness = ProxyHarness(hang, places=9, queue=9, max_held_body_bytes=1000)
    held = harness.ask(of_size(600))
    await until(lambda: len(harness.relay.calls) == 1)
    refused = await harness.asked(headers=[("Content-Length", "500")]).done()
    assert refused.status == 503
    await held.leave().done()


async def test_a_promise_of_many_bytes_takes_no_room_from_others() -> None:
    harness = ProxyHarness(places=99, queue=99, max_held_body_bytes=1000)
    idle = [harness.asked(headers=[("Content-Length", "900")]).part(b"{") for _ in range(20)]
    await until(lambda: harness.bodies.held == 20)
    assert (await harness.ask(of_size(900)).done()).status == 200
    for one in idle:
        await one.leave().done()
    assert harness.bodies.held == 0


async def test_a_body_that_is_refused_for_its_size_says_so_though_the_budget_is_spent() -> None:
    harness = ProxyHarness(hang, places=9, queue=9, max_held_body_bytes=1000)
    held = harness.ask(of_size(1000))
    await until(lambda: len(harness.relay.calls) == 1)
    refused = await harness.ask(b"x" * 1001, headers=[("Content-Length", "1001")]).done()
    assert refused.status == 413
    assert harness.bodies.held == 1000
    await held.leave().done()


@pytest.mark.parametrize("size", [1000, PIECE_BYTES * 16])
async def test_a_body_is_let_go_when_an_engine_has_begun_to_answer(
    size: int, harness: Callable[..., Any]
) -> None:
    budget = BodyBudget(size)
    async with RawEngine(says(SSE + b"\r\n", b"data: 1\n\n", hold=True)) as engine:
        made = harness()
        made.engines(engine.url)
        body = of_size(size)
        mine = sys.getrefcount(body)
        share = BodyShare(budget)
        share.take(len(body))
        request = UpstreamRequest("/v1/completions", "", [], body, body_share=share)
        asking = asyncio.create_task(made.run(request))
        await until(lambda: made.body)
        assert budget.held == 0
        assert sys.getrefcount(body) == mine
        assert engine.requests[0][1] == body
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_a_body_is_held_while_another_engine_may_need_it(harness: Callable[..., Any]) -> None:
    budget = BodyBudget(100)
    async with RawEngine(says(hold=True)) as mute:
        made = harness()
        made.engines(mute.url)
        share = BodyShare(budget)
        share.take(2)
        asking = asyncio.create_task(
            made.run(UpstreamRequest("/v1/completions", "", [], b"{}", body_share=share))
        )
        await until(lambda: mute.requests)
        assert budget.held == 2
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
