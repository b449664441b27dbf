"""Admission bounds the harness and the places, first come first served."""

import asyncio
import contextlib
import time
from random import Random

import pytest

from mamba_edge.errors import TooManyRequests
from mamba_gateway.admission.admission import Admission, retry_after
from mamba_gateway.errors import GatewayDraining
from virtual_time import in_virtual_time


def harness(places: int = 1, queue: int = 1, timeout: float = 5.0) -> Admission:
    return Admission(places, queue, timeout, time.monotonic)


async def test_the_door_closes_when_the_house_is_full() -> None:
    admission = harness(places=1, queue=1)
    with admission.admit(), admission.admit():
        assert (admission.admitted, admission.queued) == (2, 2)
        with pytest.raises(TooManyRequests) as full, admission.admit():
            pass
        assert full.value.retry_after is not None
        assert full.value.retry_after >= 1
    assert admission.admitted == 0


async def test_the_door_is_shut_while_draining_and_those_inside_go_on() -> None:
    admission = harness()
    with admission.admit():
        admission.draining = True
        with pytest.raises(GatewayDraining), admission.admit():
            pass
        async with admission.permit():
            assert admission.in_flight == 1
    async with asyncio.timeout(1):
        await admission.idle()


async def test_places_go_to_who_came_first() -> None:
    admission = harness(places=1, queue=9)
    order: list[int] = []

    async def visit(number: int) -> None:
        with admission.admit():
            async with admission.permit():
                order.append(number)
                await asyncio.sleep(0)

    await asyncio.gather(*(visit(n) for n in range(8)))
    assert order == list(range(8))


async def test_who_waits_too_long_is_told_to_come_back() -> None:
    admission = harness(timeout=0.02)
    async with admission.permit():
        with pytest.raises(TooManyRequests, match="waited"):
            async with admission.permit():
                raise AssertionError
    async with admission.permit():
        assert admission.in_flight == 1


async def test_a_visitor_that_leaves_the_queue_gives_its_turn_away() -> None:
    admission = harness(places=1, queue=9)
    async with admission.permit():
        leaving = asyncio.create_task(_visit(admission))
        staying = asyncio.create_task(_visit(admission))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    async with asyncio.timeout(1):
        await staying
    assert admission.in_flight == 0


async def _visit(admission: Admission) -> None:
    async with admission.permit():
        await asyncio.sleep(0)


async def test_a_failure_inside_frees_the_place() -> None:
    admission = harness()
    with pytest.raises(RuntimeError):
        async with admission.permit():
            raise RuntimeError
    assert admission.in_flight == 0
    async with asyncio.timeout(1), admission.permit():
        pass


@pytest.mark.parametrize(
    ("queued", "places", "service", "seconds"),
    [(0, 10, 1.0, 1), (99, 10, 2.0, 20), (10_000, 1, 30.0, 60), (0, 1, 0.0, 1)],
)
def test_retry_after_is_the_queue_at_the_mean_service_time(queued, places, service, seconds) -> None:
    assert retry_after(queued, places, service) == seconds


@pytest.mark.parametrize("seed", range(6))
def test_no_mix_of_visits_breaks_a_bound_or_leaves_anything_behind(seed: int) -> None:
    places, queue = 3, 5
    ends = {"full": 0, "waited": 0, "left": 0, "served": 0}
    told: list[float] = []

    @in_virtual_time
    async def run() -> None:
        rng = Random(seed)
        admission = Admission(places, queue, 0.8, asyncio.get_running_loop().time)

        async def visit() -> None:
            try:
                with admission.admit():
                    await asyncio.sleep(rng.choice((0, 0, 0.5)))
                    async with admission.permit():
                        assert admission.in_flight <= places
                        assert admission.admitted <= places + queue
                        await asyncio.sleep(rng.choice((0.1, 1.0, 3.0)))
                        ends["served"] += 1
            except TooManyRequests as error:
                ends["waited" if "waited" in error.message else "full"] += 1
                told.append(error.retry_after or 0)

        async def impatient() -> None:
            try:
                async with asyncio.timeout(rng.uniform(0, 2)):
                    await visit()
            except TimeoutError:
                ends["left"] += 1

        crowd = []
        for _ in range(120):
            crowd.append(asyncio.create_task(rng.choice((visit, impatient))()))
            await asyncio.sleep(rng.choice((0, 0.05, 0.5)))
        await asyncio.gather(*crowd)
        assert (admission.admitted, admission.in_flight, admission.queued) == (0, 0, 0)
        async with asyncio.timeout(0.1), contextlib.AsyncExitStack() as everywhere:
            for _ in range(places):
                await everywhere.enter_async_context(admission.permit())
        await admission.idle()

    run()
    assert sum(ends.values()) == 120
    assert all(ends.values())
    assert all(1 <= seconds <= 60 for seconds in told)


async def test_the_house_is_empty_only_when_the_last_one_left() -> None:
    admission = harness(places=2, queue=2)
    with admission.admit():
        waiting = asyncio.create_task(admission.idle())
        with admission.admit():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)


@in_virtual_time
async def test_retry_after_follows_how_long_requests_really_take() -> None:
    admission = Admission(1, 0, 5.0, asyncio.get_running_loop().time)
    for _ in range(40):
        with admission.admit():
            async with admission.permit():
                await asyncio.sleep(20)
    with admission.admit(), pytest.raises(TooManyRequests) as full, admission.admit():
        pass
    assert full.value.retry_after == pytest.approx(40, abs=2)


async def test_who_comes_does_not_overtake_those_who_wait_even_where_a_place_is_free_by_now() -> None:
    free = 0.0
    admission = Admission(4, 9, 60.0, time.monotonic, capacity=lambda _: free)
    order: list[int] = []

    async def visit(number: int) -> None:
        with admission.admit():
            async with admission.permit() as permit:
                order.append(number)
                permit.sent()
                await asyncio.sleep(1)

    first = [asyncio.create_task(visit(number)) for number in range(2)]
    await asyncio.sleep(1)
    free = 1.0  # and nobody was told yet
    late = asyncio.create_task(visit(2))
    await asyncio.sleep(0)
    await asyncio.gather(*first, late)
    assert order == [0, 1, 2]
    assert (admission.in_flight, admission.unsent, admission.queued) == (0, 0, 0)


async def test_a_place_that_was_taken_without_a_wait_comes_back_from_who_is_cancelled() -> None:
    admission = harness(places=1)

    async def visit() -> None:
        async with admission.permit():
            await asyncio.sleep(60)

    for _ in range(3):
        task = asyncio.create_task(visit())
        await asyncio.sleep(0.1)
        assert (admission.in_flight, admission.unsent) == (1, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (admission.in_flight, admission.unsent) == (0, 0)
