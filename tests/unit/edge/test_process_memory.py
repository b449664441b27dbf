"""Memory of a serving process."""

import asyncio
import gc
import threading

import pytest

from eventually import until
from mamba_edge import process_memory


def test_what_was_there_is_no_longer_searched_and_what_comes_is() -> None:
    before, threshold = [[] for _ in range(1000)], gc.get_threshold()
    try:
        process_memory.freeze()
        assert gc.get_threshold()[0] == process_memory.YOUNG_OBJECTS
        assert gc.get_freeze_count() >= 1000
        after = [[]]
        assert any(one is after for one in gc.get_objects())
        assert not any(one is before for one in gc.get_objects())
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)


async def test_memory_goes_back_while_work_is_done_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[str] = []
    looked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        trims.append(threading.current_thread().name)
        loop.call_soon_threadsafe(looked.set)

    monkeypatch.setattr(process_memory, "trim", trim)

    async def work() -> int:
        await looked.wait()
        return 7

    assert await process_memory.with_trimming(work(), seconds=0.001) == 7
    assert trims
    assert threading.current_thread().name not in trims
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_the_end_of_the_work_is_passed_on() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await process_memory.with_trimming(fails())


def test_giving_back_needs_nothing() -> None:
    process_memory.trim()
