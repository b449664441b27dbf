"""Memory of a serving process: excludes startup objects from garbage collection and returns free pages.

Called by the commands that serve, once for each process; in-process servers leave their process alone.
"""

import asyncio
import contextlib
import ctypes
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

TRIM_SECONDS = 10.0
"""Seconds between two attempts to return free pages to the system."""
YOUNG_OBJECTS = 10_000
"""Number of new objects after which the youngest generation is searched for garbage. The interpreter's
default, 700, is reached within two requests, whose objects are nearly all still in use."""


def freeze() -> None:
    """Free all garbage and exclude the remaining objects from later collections.

    Modules and models of a server are hundreds of thousands of objects: one full collection over them would
    block the event loop for 80 ms, and would free nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


def trim() -> None:
    """Return free pages in the middle of the heap to the system; the allocator itself only returns its end.

    Otherwise the process would keep the size that it reached in a burst of requests. Without glibc, nothing
    happens.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


async def with_trimming(work: Coroutine[Any, Any, Result], seconds: float = TRIM_SECONDS) -> Result:
    """Return the result of `work`, and call `trim` in a thread every `seconds` while it runs."""

    async def trim_now_and_then() -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(trim)

    trimming = asyncio.create_task(trim_now_and_then())
    try:
        return await work
    finally:
        trimming.cancel()
