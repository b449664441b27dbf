"""The loop that all pollers of pods share: what it polls, keeps, forgets and wakes, and how often."""

import asyncio
from collections.abc import Callable

import pytest

from mamba_operator.objects.indices import Indices, index_id
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key
from mamba_operator.objects.pod_poller import PodPoller
from virtual_time import in_virtual_time

FIRST, SECOND = Key("models", "first"), Key("models", "second")


class Numbers(PodPoller[int, int]):
    """Reads a number of each deployment, which takes `delay` seconds; a negative one is an error."""

    def __init__(self, wake: Callable[[Key], None], delay: float = 0.0) -> None:
        indices = Indices()
        indices.take({index_id(MAMBA_DEPLOYMENT): {FIRST: [{}], SECOND: [{}]}})
        super().__init__(indices, wake, period=10.0, failure_event="numbers_failed", now=self._time)
        self.numbers: dict[Key, int] = {FIRST: 1, SECOND: 2}
        self.delay = delay
        self.polled: list[tuple[float, Key]] = []

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _select(self, key: Key) -> int | None:
        return self.numbers.get(key)

    async def _update(self, key: Key, selection: int) -> bool:
        self.polled.append((self._time(), key))
        await asyncio.sleep(self.delay)
        if selection < 0:
            raise ValueError(selection)
        changed = self._reports.get(key) != selection
        self._reports[key] = selection
        return changed

    @property
    def reports(self) -> dict[Key, int]:
        return dict(self._reports)


@in_virtual_time
async def test_a_deployment_wakes_once_for_each_report_that_changed() -> None:
    woken: list[Key] = []
    poller = Numbers(woken.append)
    await poller.poll()
    await poller.poll()
    assert woken == [FIRST, SECOND]
    poller.numbers[SECOND] = 3
    await poller.poll()
    assert (woken, poller.reports) == ([FIRST, SECOND, SECOND], {FIRST: 1, SECOND: 3})


@in_virtual_time
async def test_the_report_of_a_deployment_that_is_no_longer_polled_is_forgotten() -> None:
    poller = Numbers(lambda _: None)
    await poller.poll()
    del poller.numbers[FIRST]
    await poller.poll()
    assert poller.reports == {SECOND: 2}


@in_virtual_time
async def test_a_deployment_whose_poll_fails_keeps_its_report_and_stops_no_other() -> None:
    woken: list[Key] = []
    poller = Numbers(woken.append)
    await poller.poll()
    poller.numbers = {FIRST: -1, SECOND: 3}
    await poller.poll()
    assert (woken, poller.reports) == ([FIRST, SECOND, SECOND], {FIRST: 1, SECOND: 3})


@pytest.mark.parametrize(("delay", "begins"), [(0.0, [0, 10, 20]), (4.0, [0, 10, 20]), (15.0, [0, 16, 32])])
@in_virtual_time
async def test_polls_begin_every_period_and_leave_a_tenth_of_it_between_two(
    delay: float, begins: list[float]
) -> None:
    poller = Numbers(lambda _: None, delay)
    task = asyncio.create_task(poller.run())
    await asyncio.sleep(begins[-1] + 0.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [at for at, key in poller.polled if key == FIRST] == pytest.approx(begins)
