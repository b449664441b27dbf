"""Draining: who is refused, and when it is over."""

import asyncio

import pytest

from mamba_edge.errors import NotReady
from mamba_server.api.drain import Drain


async def test_an_idle_drain_is_over_at_once() -> None:
    assert await Drain().wait_until_idle(0.01)


async def test_it_is_over_when_the_last_request_ends() -> None:
    drain = Drain()
    first, second = drain.request(), drain.request()
    first.__enter__()
    second.__enter__()
    waiting = asyncio.create_task(drain.wait_until_idle(5))
    first.__exit__(None, None, None)
    await asyncio.sleep(0)
    assert not waiting.done()
    second.__exit__(None, None, None)
    assert await waiting


async def test_the_deadline_ends_the_wait() -> None:
    drain = Drain()
    with drain.request():
        assert not await drain.wait_until_idle(0.01)


async def test_while_draining_new_requests_are_refused_with_retry_after() -> None:
    drain = Drain()
    drain.draining = True
    with pytest.raises(NotReady) as caught, drain.request():
        pass
    assert "retry-after" in caught.value.headers()
    # On the same connection a retry would reach the same server.
    assert caught.value.headers()["connection"] == "close"
    assert drain.under_way == 0


async def test_a_request_that_fails_is_no_longer_under_way() -> None:
    drain = Drain()
    with pytest.raises(ValueError, match="x"), drain.request():
        raise ValueError("x")
    assert drain.under_way == 0
    assert await drain.wait_until_idle(0.01)


async def test_with_no_time_at_all_an_idle_drain_is_still_over() -> None:
    assert await Drain().wait_until_idle(0)


async def test_with_no_time_at_all_a_running_request_is_not_waited_for() -> None:
    drain = Drain()
    with drain.request():
        assert not await drain.wait_until_idle(0)
    assert await drain.wait_until_idle(0)


async def test_several_may_wait_for_the_same_end() -> None:
    drain = Drain()
    with drain.request():
        waiting = [asyncio.create_task(drain.wait_until_idle(5)) for _ in range(3)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting) == [True] * 3


async def test_a_drain_that_was_called_off_takes_requests_again_and_ends_later() -> None:
    drain = Drain()
    drain.draining = True
    drain.draining = False
    with drain.request():
        assert drain.under_way == 1
        with drain.request():
            assert drain.under_way == 2
        assert not await drain.wait_until_idle(0.001)
    assert await drain.wait_until_idle(0.001)
