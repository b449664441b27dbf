"""Requests that wait for an engine: how long, for whom, and what they are told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mamba_edge.errors import ModelNotFound
from mamba_gateway.endpoints.pool import Target
from mamba_gateway.errors import NoEndpoint, RequestTimedOut
from raw_engine import OK, RawEngine, says

Harnesses = Callable[..., Any]


async def test_without_any_engine_the_wait_ends_in_503_with_the_reason(harness: Harnesses) -> None:
    made = harness(hold_timeout=0.05)
    begin = asyncio.get_running_loop().time()
    with pytest.raises(NoEndpoint, match="no engine") as caught:
        await made.run()
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.05)
    assert caught.value.retry_after == 2
    assert made.wakes >= 1
    assert made.count("held") == 0


async def test_reasons_of_at_most_three_engines_are_told(harness: Harnesses) -> None:
    made = harness(hold_timeout=0.02)
    made.engines(*(f"http://e{n}" for n in range(5)), ready=False, reason="loading")
    with pytest.raises(NoEndpoint) as caught:
        await made.run()
    assert caught.value.message.count("loading") == 3


async def test_the_last_engine_answers_while_it_goes_and_another_one_is_asked_for(
    harness: Harnesses,
) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness(hold_timeout=0)
        made.engines(engine.url)
        made.pool.set_targets([Target(engine.url, draining=True)])
        await made.run()
        assert made.status == 200
        assert made.wakes == 1


async def test_a_hold_time_of_nothing_refuses_at_once(harness: Harnesses) -> None:
    made = harness(hold_timeout=0)
    with pytest.raises(NoEndpoint):
        await asyncio.wait_for(made.run(), 1)


async def test_an_engine_that_comes_is_used_and_one_that_goes_again_is_not(harness: Harnesses) -> None:
    async with RawEngine(says(OK)) as engine:
        made = harness(hold_timeout=5)
        asking = asyncio.create_task(made.run())
        await asyncio.sleep(0.01)
        assert made.count("held") == 1
        made.engines(engine.url, ready=False)
        await asyncio.sleep(0.01)
        made.pool.set_targets(())
        await asyncio.sleep(0.01)
        assert not asking.done()
        made.engines(engine.url)
        await asyncio.wait_for(asking, 2)
        assert made.status == 200
        assert made.count("held") == 0
        assert made.wakes >= 3


async def test_a_model_that_turns_out_to_be_unknown_is_told_while_held(harness: Harnesses) -> None:
    made = harness(hold_timeout=30)
    asking = asyncio.create_task(made.run())
    await asyncio.sleep(0.01)
    made.engines("http://e", models=({"id": "other"},))
    with pytest.raises(ModelNotFound, match=r"'m' .*'other'") as caught:
        await asyncio.wait_for(asking, 2)
    assert caught.value.param == "model"


async def test_a_model_that_no_engine_will_serve_wakes_none(harness: Harnesses) -> None:
    made = harness(hold_timeout=30, expected_model="expected")
    with pytest.raises(ModelNotFound, match=r"'m' .*'expected'"):
        await asyncio.wait_for(made.run(), 1)
    made.engines("http://e", models=({"id": "other"},))
    with pytest.raises(ModelNotFound):
        await asyncio.wait_for(made.run(), 1)
    assert made.wakes == 0


async def test_a_held_request_that_is_cancelled_is_held_no_more(harness: Harnesses) -> None:
    made = harness(hold_timeout=30)
    asking = asyncio.create_task(made.run())
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert made.count("held") == 0


async def test_the_longest_life_ends_the_hold(harness: Harnesses) -> None:
    made = harness(hold_timeout=30, request_timeout=0.05)
    with pytest.raises(RequestTimedOut, match=r"longer than 0\.05 s"):
        await asyncio.wait_for(made.run(), 2)
    assert made.count("held") == 0
