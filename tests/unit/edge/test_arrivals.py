"""When a process that goes may stop taking requests."""

import asyncio

from mamba_edge.exchange.request_arrivals import RequestArrivals
from virtual_time import in_virtual_time


@in_virtual_time
async def test_it_is_quiet_when_none_has_come_for_as_long_as_asked() -> None:
    loop, arrivals = asyncio.get_running_loop(), RequestArrivals()
    quiet = asyncio.create_task(arrivals.none_for(5))
    last = 0.0
    for gap in (1, 4, 4.9, 3):
        await asyncio.sleep(gap)
        assert not quiet.done()
        arrivals.record()
        last = loop.time()
    await quiet
    assert 5 <= loop.time() - last <= 6


@in_virtual_time
async def test_requests_from_before_do_not_count_unless_they_are_under_way() -> None:
    loop, arrivals = asyncio.get_running_loop(), RequestArrivals()
    arrivals.record()
    await arrivals.none_for(5, lambda: loop.time() < 7)
    assert 12 <= loop.time() <= 13


@in_virtual_time
async def test_a_loop_that_stood_still_sees_who_came_before_it_calls_that_quiet() -> None:
    arrivals, looked = RequestArrivals(), 0

    def look() -> bool:
        nonlocal looked
        looked += 1
        return False

    await arrivals.none_for(5, look)
    assert looked >= 10
