"""Waiting for a condition that has no event of its own, and how long at most.

A wait ends as soon as its condition holds. Its limit only tells a hang from a slow machine, so there is one,
and no test asserts how long something took.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 120.0
"""Seconds after which something that did not come never will, on whatever machine."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.05
"""Seconds between two looks at a condition, at first and after a while."""
Found = TypeVar("Found")


async def until(
    condition: Callable[[], object], seconds: float = PATIENCE, *, longest_pause: float = LONGEST_PAUSE
) -> None:
    """Return as soon as the condition holds; TimeoutError after `seconds`.

    Looks ever less often: on virtual time each look costs the real time in which something could have come.
    So a wait for half a minute of it takes a longer `longest_pause`.
    """
    pause = SHORTEST_PAUSE
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, longest_pause)


async def turns(count: int = 50) -> None:
    """Let whatever can go on without the clock go on."""
    for _ in range(count):
        await asyncio.sleep(0)


def wait_until(look: Callable[[], Found], what: str = "") -> Found:
    """Return the first true result of `look`; for tests of processes.

    Looks ever less often: a look may be a request that takes a server milliseconds. Raises AssertionError
    after PATIENCE.
    """
    deadline, pause = time.monotonic() + PATIENCE, SHORTEST_PAUSE
    while not (value := look()):
        assert time.monotonic() < deadline, f"{what or 'what was waited for'} never came"
        time.sleep(pause)
        pause = min(pause * 1.2, LONGEST_PAUSE)
    return value
