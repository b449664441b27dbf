"""One answer for all who ask at about the same time."""

import asyncio

import pytest

from mamba_edge.status_page import CachedValue


class Counted:
    """Answers with how often it was asked, when it may."""

    def __init__(self) -> None:
        self.made = 0
        self.now = 0.0
        self.may = asyncio.Event()
        self.may.set()
        self.broken = False
        self.shared = CachedValue(self.make, seconds=1.0, clock=lambda: self.now)

    async def make(self) -> int:
        self.made += 1
        await self.may.wait()
        if self.broken:
            raise OSError("away")
        return self.made


async def test_whoever_asks_meanwhile_gets_the_same_and_whoever_asks_later_a_new_one() -> None:
    counted = Counted()
    counted.may.clear()
    asking = [asyncio.create_task(counted.shared.get()) for _ in range(5)]
    await asyncio.sleep(0)
    counted.may.set()
    assert await asyncio.gather(*asking) == [1] * 5
    counted.now = 0.9
    assert await counted.shared.get() == 1
    counted.now = 1.0
    assert await counted.shared.get() == 2


async def test_a_failure_is_not_kept() -> None:
    counted = Counted()
    counted.broken = True
    with pytest.raises(OSError, match="away"):
        await counted.shared.get()
    counted.broken = False
    assert await counted.shared.get() == 2


async def test_one_who_leaves_while_it_is_made_takes_nothing_from_the_others() -> None:
    counted = Counted()
    counted.may.clear()
    first, second = (asyncio.create_task(counted.shared.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    counted.may.set()
    assert await second == 2
