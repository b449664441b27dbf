"""Waiting for a condition that has no event of its own."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return as soon as the condition holds; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - polled on purpose
            await asyncio.sleep(0.002)
