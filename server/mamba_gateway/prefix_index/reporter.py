"""Tells the operator while the Redis of the prefix index is missing, which makes it a condition.

Not for a moment's failure; repeated, because a report that nobody repeats stops counting; taken back when it
is over.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from mamba_api import names
from mamba_gateway.operator_note import OperatorNote
from mamba_kube.errors import short

log = structlog.get_logger("mambaserve.gateway")

CHECK_SECONDS = 5.0
MIN_FAILED_CHECKS = 3
"""Times in a row that something has to be the matter before it is told."""
CHECKS_PER_WRITE = 6
"""Looks between two writes of one trouble."""


class IndexReporter:
    """`trouble`: what is the matter now, None for nothing."""

    def __init__(
        self, note: OperatorNote, trouble: Callable[[], str | None], now: Callable[[], datetime]
    ) -> None:
        self._note, self._trouble, self._now = note, trouble, now
        self._failed_checks = 0
        self._written = False

    async def work(self) -> None:
        """Look for ever; ends only by cancellation."""
        while True:
            try:
                await self.check()
            except Exception as error:
                log.warning("could not tell of the prefix index", error=short(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Look once, and write what has to be. Raises ApiError, OSError, TimeoutError."""
        trouble = self._trouble()
        if trouble is None:
            self._failed_checks = 0
            if self._written:
                await self._note.write(names.INDEX_TROUBLE_KEY, None)
                self._written = False
            return
        self._failed_checks += 1
        if (
            self._failed_checks >= MIN_FAILED_CHECKS
            and (self._failed_checks - MIN_FAILED_CHECKS) % CHECKS_PER_WRITE == 0
        ):
            at = self._now().isoformat(timespec="seconds")
            self._written = True
            await self._note.write(names.INDEX_TROUBLE_KEY, f"{at} {trouble}")
