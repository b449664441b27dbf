"""Deadlines of one length over one timer: each falls due in its time, and those that ended never do."""

import asyncio
import contextvars
import random
from typing import Any

from mamba_gateway.upstream.deadlines import Deadlines


class Noted:
    """Notes when it falls due."""

    def __init__(self) -> None:
        self.due: list[float] = []
        self.began = asyncio.get_running_loop().time()

    def expire(self) -> None:
        self.due.append(asyncio.get_running_loop().time() - self.began)


async def test_each_falls_due_in_its_own_time_and_those_that_ended_never() -> None:
    rng, deadlines = random.Random(1), Deadlines(asyncio.get_running_loop(), 10.0)
    kept, ended = [], []
    for _ in range(40):
        one = Noted()
        deadlines.begin(one)
        kept.append(one)
        if rng.random() < 0.5:
            ended.append(kept.pop(rng.randrange(len(kept))))
            deadlines.end(ended[-1])
        await asyncio.sleep(3 * rng.random())
    await asyncio.sleep(20)
    on_time = [one for one in kept if len(one.due) == 1 and abs(one.due[0] - 10.0) < 1e-3]
    assert on_time == kept
    # Those that ended in time; some fell due before.
    assert all(abs(at - 10.0) < 1e-3 for one in ended for at in one.due)
    assert sum(not one.due for one in ended) > 10


async def test_one_that_falls_due_may_begin_anew_and_end_others() -> None:
    deadlines = Deadlines(asyncio.get_running_loop(), 1.0)
    other = Noted()

    class Again(Noted):
        def expire(self) -> None:
            super().expire()
            deadlines.end(other)
            if len(self.due) < 3:
                deadlines.begin(self)

    again = Again()
    deadlines.begin(again)
    deadlines.begin(other)
    await asyncio.sleep(10)
    assert [round(at, 2) for at in again.due] == [1.0, 2.0, 3.0]
    assert other.due == []


async def test_nothing_falls_due_behind_the_end_and_no_timer_is_left() -> None:
    deadlines = Deadlines(asyncio.get_running_loop(), 1.0)
    one = Noted()
    deadlines.begin(one)
    deadlines.close()
    await asyncio.sleep(5)
    assert one.due == []


async def test_the_timer_does_not_hold_the_context_of_who_needed_it_first() -> None:
    deadlines = Deadlines(asyncio.get_running_loop(), 1.0)
    of_request = contextvars.ContextVar("of_request", default="none")
    seen: list[str] = []

    class Looks(Noted):
        def expire(self) -> None:
            seen.append(of_request.get())

    of_request.set("first")
    deadlines.begin(Looks())
    await asyncio.sleep(2)
    assert seen == ["none"]


async def test_who_fails_does_not_keep_the_others_from_falling_due() -> None:
    loop = asyncio.get_running_loop()
    deadlines = Deadlines(loop, 1.0)
    failed: list[object] = []
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))

    class Fails(Noted):
        def expire(self) -> None:
            raise ValueError

    deadlines.begin(Fails())
    beside = Noted()
    deadlines.begin(beside)
    await asyncio.sleep(0.5)
    later = Noted()
    deadlines.begin(later)
    await asyncio.sleep(5)
    assert [type(one) for one in failed] == [ValueError]
    assert [round(at, 2) for one in (beside, later) for at in one.due] == [1.0, 1.0]


async def test_one_timer_waits_for_all_and_the_end_takes_it_along() -> None:
    loop = asyncio.get_running_loop()
    wound: list[asyncio.TimerHandle] = []
    plain = loop.call_at

    def counted(*given: Any, **more: Any) -> asyncio.TimerHandle:
        handle = plain(*given, **more)
        if getattr(given[1], "__self__", None) is deadlines:
            wound.append(handle)
        return handle

    loop.call_at = counted  # type: ignore[method-assign]
    deadlines = Deadlines(loop, 1.0)

    class Again(Noted):
        def expire(self) -> None:
            super().expire()
            deadlines.begin(self)

    again = [Again() for _ in range(3)]
    for one in again:
        deadlines.begin(one)
    await asyncio.sleep(2.5)
    assert [len(one.due) for one in again] == [2, 2, 2]
    assert len(wound) == 3  # one for each second, whoever begins anew
    deadlines.close()
    assert all(handle.cancelled() or handle.when() < loop.time() for handle in wound)
