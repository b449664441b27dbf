"""The queue never runs a key twice at once, forgets no wake, and backs off from failures. In virtual time."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_operator.process.workqueue import MIN_RETRY_SECONDS, RetryPolicy, WorkQueue
from virtual_time import in_virtual_time


class Work:
    """Records when each key ran; each run takes `seconds`; `outcome` decides how it ends."""

    def __init__(self, seconds: float = 0.0, outcome: Callable[[str], float | None] = lambda _: None) -> None:
        self.runs: list[tuple[float, str]] = []
        self.at_once: dict[str, int] = {}
        self.most_at_once = 0
        self._seconds = seconds
        self._outcome = outcome

    async def __call__(self, key: str) -> float | None:
        self.at_once[key] = self.at_once.get(key, 0) + 1
        self.most_at_once = max(self.most_at_once, self.at_once[key])
        self.runs.append((round(asyncio.get_running_loop().time(), 3), key))
        await asyncio.sleep(self._seconds)
        self.at_once[key] -= 1
        return self._outcome(key)

    def times(self) -> list[float]:
        return [at for at, _ in self.runs]


async def run(queue: WorkQueue[str], work: Work, seconds: float, workers: int = 3) -> None:
    task = asyncio.create_task(queue.run(work, workers))
    await asyncio.sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_many_wakes_while_waiting_are_one_run() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(5):
        queue.add("a")
    work = Work()

    await run(queue, work, 1)

    assert len(work.runs) == 1


@in_virtual_time
async def test_a_wake_while_running_makes_it_run_once_more_and_never_twice_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    work = Work(seconds=1.0)
    loop = asyncio.get_running_loop()
    for moment in (0.2, 0.4, 0.6):
        loop.call_later(moment, queue.add, "a")

    await run(queue, work, 5)

    assert work.times() == [0.0, 1.0]
    assert work.most_at_once == 1


@in_virtual_time
async def test_other_keys_run_meanwhile() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("slow")
    queue.add("other")
    work = Work(seconds=1.0)

    await run(queue, work, 0.5)

    assert work.times() == [0.0, 0.0]


@in_virtual_time
async def test_a_key_comes_back_when_it_asked_to() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    work = Work(outcome=lambda _: 10.0)

    await run(queue, work, 25)

    assert work.times() == [0.0, 10.0, 20.0]


@in_virtual_time
async def test_a_wake_comes_before_the_appointment() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    work = Work(outcome=lambda _: 10.0)
    asyncio.get_running_loop().call_later(4, queue.add, "a")

    await run(queue, work, 12)

    assert work.times() == [0.0, 4.0]


@in_virtual_time
async def test_the_earlier_of_two_appointments_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 9)
    queue.add_after("a", 3)
    queue.add_after("a", 6)
    work = Work()

    await run(queue, work, 20)

    assert work.times() == [3.0]


def failing(times: int, error: Exception) -> Callable[[str], float | None]:
    left = [times]

    def outcome(_: str) -> float | None:
        if left[0] > 0:
            left[0] -= 1
            raise error
        return None

    return outcome


@in_virtual_time
async def test_failures_come_back_later_each_time_and_success_forgets_them() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=1, most=60, jitter=0.5), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(3, ValueError("no")))

    await run(queue, work, 30)

    assert work.times() == [0.0, 1.0, 3.0, 7.0]
    assert queue.failures("a") == 0


@in_virtual_time
async def test_a_failing_key_that_is_woken_while_it_runs_still_backs_off() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=5), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(seconds=1.0, outcome=failing(1, ValueError("no")))
    asyncio.get_running_loop().call_later(0.5, queue.add, "a")

    await run(queue, work, 20)

    assert work.times() == [0.0, 6.0]


@in_virtual_time
async def test_a_wake_from_outside_ends_the_back_off_because_something_changed() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=50), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(1, ValueError("no")))
    asyncio.get_running_loop().call_later(2, queue.add, "a")

    await run(queue, work, 20)

    assert work.times() == [0.0, 2.0]


@in_virtual_time
async def test_a_wake_right_after_a_failure_waits_for_the_pause_and_many_of_them_are_one_run() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=50), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(1, ValueError("no")))
    for moment in (0.1, 0.2, 0.9):
        asyncio.get_running_loop().call_later(moment, queue.add, "a")

    await run(queue, work, 20)

    assert work.times() == [0.0, MIN_RETRY_SECONDS]


@in_virtual_time
async def test_the_pause_is_over_with_the_next_success() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=50), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(1, ValueError("no")))
    for moment in (0.5, 1.1, 1.2):
        asyncio.get_running_loop().call_later(moment, queue.add, "a")

    await run(queue, work, 20)

    assert work.times() == [0.0, MIN_RETRY_SECONDS, 1.1, 1.2]


@in_virtual_time
async def test_a_key_that_fails_and_is_woken_all_the_time_does_not_keep_the_others_waiting() -> None:
    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=0.001), random_unit=lambda: 0.0)
    work = Work(seconds=0.01, outcome=lambda key: failing(1, ValueError("no"))(key) if key == "bad" else None)
    loop = asyncio.get_running_loop()
    for number in range(200):
        loop.call_later(number / 100, queue.add, "bad")
    loop.call_later(1.005, queue.add, "good")

    await run(queue, work, 5, workers=1)

    [at] = [at for at, key in work.runs if key == "good"]
    assert at < 1.05


@in_virtual_time
async def test_a_key_that_is_always_due_takes_turns_with_the_others() -> None:
    queue: WorkQueue[str] = WorkQueue()
    work = Work(seconds=1.0, outcome=lambda key: 0.0 if key == "busy" else None)
    queue.add("busy")
    loop = asyncio.get_running_loop()
    loop.call_later(0.5, queue.add, "a")
    loop.call_later(0.6, queue.add, "b")

    await run(queue, work, 5, workers=1)

    assert [key for _, key in work.runs][:4] == ["busy", "a", "b", "busy"]


@in_virtual_time
async def test_more_keys_than_workers_are_all_worked_on_and_never_more_than_workers_at_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    running, most = [0], [0]

    async def work(_: str) -> float | None:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await asyncio.sleep(1)
        running[0] -= 1
        return None

    for number in range(10):
        queue.add(str(number))
    task = asyncio.create_task(queue.run(work, 3))
    await asyncio.sleep(3.5)
    assert len(queue) == 0
    assert running[0] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert most[0] == 3


@in_virtual_time
async def test_a_queue_that_is_cancelled_ends_what_runs_and_can_run_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    ended: list[str] = []

    async def work(key: str) -> float | None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(key)
        return None

    task = asyncio.create_task(queue.run(work, 2))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert ended == ["a"]
    assert queue.oldest_run() == 0.0
    queue.add("a")
    after = Work()
    await run(queue, after, 1)
    assert len(after.runs) == 1


@in_virtual_time
async def test_an_endless_wish_to_wait_still_lets_a_wake_through() -> None:
    class Busy(Exception):
        retry_after = float("inf")

    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=1), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(1, Busy()))
    asyncio.get_running_loop().call_later(500, queue.add, "a")

    await run(queue, work, 1000)

    assert work.times() == [0.0, 500.0]


@in_virtual_time
async def test_the_servers_wish_to_wait_is_granted() -> None:
    class Busy(Exception):
        retry_after = 30.0

    queue: WorkQueue[str] = WorkQueue(RetryPolicy(first=1), random_unit=lambda: 0.0)
    queue.add("a")
    work = Work(outcome=failing(1, Busy()))

    await run(queue, work, 40)

    assert work.times() == [0.0, 30.0]


@in_virtual_time
async def test_a_hanging_key_is_seen() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    task = asyncio.create_task(queue.run(Work(seconds=100), 1))
    await asyncio.sleep(42)

    assert queue.oldest_run() == pytest.approx(42, abs=0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@given(st.integers(1, 10_000), st.floats(0, 0.999))
def test_the_back_off_is_bounded_and_never_zero(failures: int, random_unit: float) -> None:
    backoff = RetryPolicy(first=0.5, most=60, jitter=0.5)

    assert 0.25 <= backoff.delay(failures, random_unit) <= 60
