"""Notes from a gateway to the operator: texts in the ConfigMap X-wake, the only object that a gateway writes.

`Waker` requests an engine while requests are held and no engine is ready. The relay calls `request`, and a
task writes the time of the request every few seconds, because a deployment that was scaled to zero stops its
engines again unless the request is repeated. `IndexReporter` reports that the Redis of the prefix index
cannot be used. It reports only after several consecutive failed checks, repeats the report because the
operator lets reports expire, and removes it once Redis works again.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import structlog

from mamba_api import names
from mamba_kube.api_server import MERGE_PATCH, ApiServer
from mamba_kube.errors import short

log = structlog.get_logger("mambaserve.gateway")


class OperatorNote:
    """Writes texts for the operator into the ConfigMap that a gateway has for one MambaDeployment."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self._server = server
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{names.Children(name).wake}"

    async def write(self, key: str, text: str | None) -> None:
        """Write `text` under `key`; None removes it. Raises ApiError, OSError, TimeoutError."""
        await self._server.request(
            "PATCH",
            self._path,
            query={"fieldManager": "mambaserve-gateway"},
            body={"data": {key: text}},
            content_type=MERGE_PATCH,
        )


WRITE_SECONDS = 15.0
"""Seconds between two writes while requests are held."""


class Waker:
    """Tells the operator that one MambaDeployment, which was scaled to zero, needs an engine.

    Between two notes are at least `every` seconds.
    """

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
        """Request an engine, because a request is held."""
        self._requested.set()

    async def work(self) -> None:
        """Write the time whenever an engine was requested, until the task is cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                await self.wake()
                log.info("asked for an engine", deployment=self._name)
            except Exception as error:
                # The task continues after an error: later requests must be able to wake the deployment.
                log.warning("could not ask for an engine", deployment=self._name, error=short(error))
            await asyncio.sleep(self._every)

    async def wake(self) -> None:
        """Write the time once. Raises ApiError."""
        await self._note.write(names.WAKE_KEY, self._now().isoformat(timespec="seconds"))


CHECK_SECONDS = 5.0
MIN_FAILED_CHECKS = 3
"""Number of consecutive failed checks before the first report."""
CHECKS_PER_WRITE = 6
"""Number of failed checks between two writes of the same report."""


class IndexReporter:
    """Tells the operator of trouble with the Redis of one prefix index.

    `trouble` returns the message; None = there is no trouble.
    """

    def __init__(
        self, note: OperatorNote, trouble: Callable[[], str | None], now: Callable[[], datetime]
    ) -> None:
        self._note, self._trouble, self._now = note, trouble, now
        self._failed_checks = 0
        self._written = False

    async def work(self) -> None:
        """Look for trouble with the prefix index every `CHECK_SECONDS`, and report it to the operator.

        This continues after errors, until the task is cancelled.
        """
        while True:
            try:
                await self.check()
            except Exception as error:
                log.warning("could not report on the prefix index", error=short(error))
            await asyncio.sleep(CHECK_SECONDS)

    async def check(self) -> None:
        """Check once; write or remove the report if it is time. Raises ApiError, OSError, TimeoutError."""
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
