"""Memory of a serving process: what was there at the start is never searched for garbage, and what is free
goes back to the system.

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
"""Time between two looks for pages that can go back."""
LOOK_AFTER = 10_000
"""Objects more than before after which the young ones are searched for garbage. The interpreter's own 700 are
those of two requests: nearly all of them live still."""


def freeze() -> None:
    """Take all that is there out of the collector's sight, and what is garbage out of memory.

    Modules and models of a server are hundreds of thousands of objects: one full collection over them holds
    the event loop up for 80 ms, now and then and for nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(LOOK_AFTER, *gc.get_threshold()[1:])


def trim() -> None:
    """Give free pages in the middle of the heap back; the allocator itself only ever gives back its end.

    A burst of requests would otherwise stay in the process's size for good. Without glibc nothing happens.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


async def with_trimming(work: Coroutine[Any, Any, Result], seconds: float = TRIM_SECONDS) -> Result:
    """The result of `work`, and `trim` every so many seconds while it runs, in a thread."""

    async def trim_now_and_then() -> None:
        while True:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(trim)

    trimming = asyncio.create_task(trim_now_and_then())
    try:
        return await work
    finally:
        trimming.cancel()
