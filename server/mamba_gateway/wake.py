"""Wake: asks the operator for an engine while requests are held and none is ready.

The relay calls `request`; a task of its own writes the time, again every few seconds, because a
scaled-to-zero deployment falls asleep if the request is not repeated.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from mamba_api import names
from mamba_gateway.operator_note import OperatorNote
from mamba_kube.api_server import ApiServer
from mamba_kube.errors import short

log = structlog.get_logger("mambaserve.gateway")

WRITE_SECONDS = 15.0
"""Seconds between two writes while requests are held."""


class Waker:
    """Wakes one MambaDeployment."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        name: str,
        now: Callable[[], datetime],
        every: float = WRITE_SECONDS,
    ) -> None:
        self._name, self._now, self._every = name, now, every
        self._note = OperatorNote(server, namespace, name)
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Ask for an engine, since a request is held."""
        self._requested.set()

    async def work(self) -> None:
        """Write for ever, whenever requested; ends only by cancellation."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self.wake()
                log.info("asked for an engine", deployment=self._name)
            except Exception as error:
                # The request that is held now must not be the last one that could wake the deployment.
                log.warning("could not ask for an engine", deployment=self._name, error=short(error))
            await asyncio.sleep(self._every)

    async def wake(self) -> None:
        """Write the time once. Raises ApiError."""
        await self._note.write(names.WAKE_KEY, self._now().isoformat(timespec="seconds"))
