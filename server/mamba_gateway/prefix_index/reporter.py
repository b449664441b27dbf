"""`IndexReporter`: reports to the operator, which sets a condition, that the Redis of the index is unusable.

A report is written only after several failed checks in a row, repeated because the operator lets reports
expire, and removed when the trouble is over.
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
"""Failed checks in a row before the first report."""
CHECKS_PER_WRITE = 6
"""Failed checks between two writes of the same report."""


class IndexReporter:
    """Reports the trouble of one index: `trouble` returns what is wrong now, None = nothing."""

    def __init__(
        self, note: OperatorNote, trouble: Callable[[], str | None], now: Callable[[], datetime]
    ) -> None:
        self._note, self._trouble, self._now = note, trouble, now
        self._failed_checks = 0
        self._written = False

    async def work(self) -> None:
        """Check periodically; ends only by cancellation."""
        while True:
            try:
                await self.check()
            except Exception as error:
                log.warning("could not tell of the prefix index", error=short(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Check once, and write or remove the report if due. Raises ApiError, OSError, TimeoutError."""
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
            time = self._now().isoformat(timespec="seconds")
            self._written = True
            await self._note.write(names.INDEX_TROUBLE_KEY, f"{time} {trouble}")
