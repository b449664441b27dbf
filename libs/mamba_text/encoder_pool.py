"""Threads that turn texts into token ids while the event loop continues to stream.

An API process has one pool, and so has a gateway. Long texts have a thread of their own, so that no short
prompt waits behind a book; a request that ends takes work that has not begun out of the queue. The tokenizer
lets other threads run while it works.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREAD_FROM_CHARS = 4096
"""Number of characters below which encoding takes less time than handing the text to a thread."""
LONG_FROM_CHARS = 1 << 18
"""Number of characters from which encoding may take a second."""

Result = TypeVar("Result")
GivenUp = Callable[[], bool]
"""Function that returns whether the request has ended, called between two texts."""


class EncoderPool:
    """Tokenizes texts in threads: `threads` for texts of ordinary length, and one for long texts.

    Each thread is started when it is first needed.
    """

    def __init__(self, threads: int = 2) -> None:
        self._ordinary = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="encode-long")

    def hand_over(self, work: Callable[[], None]) -> None:
        """Queue `work`, for which no request waits, behind the work on long texts, and return at once."""
        self._long.submit(work)

    async def run(self, chars: int, work: Callable[[GivenUp], Result]) -> Result:
        """Return the result of `work` on a text of `chars` characters.

        `work` gets a function that returns True once this call is cancelled.
        """
        if chars < THREAD_FROM_CHARS:
            return work(lambda: False)
        given_up = threading.Event()
        pool = self._long if chars >= LONG_FROM_CHARS else self._ordinary
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, given_up.is_set)
        finally:
            given_up.set()
