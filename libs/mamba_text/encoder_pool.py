"""Threads that turn texts into token ids, beside the event loop that keeps streaming meanwhile.

Made once by the API process. Long texts have a thread of their own, so that nobody's short prompt waits
behind a book; who gives up takes what has not begun out of the queue. The tokenizer lets other threads run
while it works.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREAD_FROM_CHARS = 4096
"""Below this many characters encoding takes less time than handing it to a thread."""
LONG_FROM_CHARS = 1 << 18
"""From here on encoding may take a second."""

Result = TypeVar("Result")
GivenUp = Callable[[], bool]
"""Whether nobody waits any more; asked between one text and the next."""


class EncoderPool:
    """Two threads for texts of ordinary length, one for long ones; each is started when it is needed."""

    def __init__(self) -> None:
        self._ordinary = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="encode-long")

    def hand_over(self, work: Callable[[], None]) -> None:
        """Do long work for which nobody waits, behind what is under way."""
        self._long.submit(work)

    async def run(self, chars: int, work: Callable[[GivenUp], Result]) -> Result:
        """The result of `work` on so many characters. Cancelled, it takes its work back or tells it."""
        if chars < THREAD_FROM_CHARS:
            return work(lambda: False)
        given_up = threading.Event()
        pool = self._long if chars >= LONG_FROM_CHARS else self._ordinary
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, given_up.is_set)
        finally:
            given_up.set()
