"""When a process that goes may stop taking requests."""

import asyncio

from mamba_edge.arrivals import Arrivals
from virtual_time import in_virtual_time


@in_virtual_time
async def test_it_is_quiet_when_none_has_come_for_as_long_as_asked() -> None:
    loop, arrivals = asyncio.get_running_loop(), Arrivals()
    quiet = asyncio.create_task(arrivals.none_for(5))
    last = 0.0
    for gap in (1, 4, 4.9, 3):
        await asyncio.sleep(gap)
        assert not quiet.done()
        arrivals.came()
        last = loop.time()
    await quiet
    assert 5 <= loop.time() - last <= 10


@in_virtual_time
async def test_requests_from_before_do_not_count() -> None:
    arrivals = Arrivals()
    arrivals.came()
    await arrivals.none_for(5)
    assert asyncio.get_running_loop().time() == 5
