"""Wake: asks the operator for an engine while requests are held and none is ready.

The relay says that one is wanted; a task of its own writes the time into the deployment's wake annotation,
again every few seconds, because a scaled-to-zero deployment falls asleep if nobody repeats it.
"""

import asyncio
import contextlib
from collections.abc import Callable
from datetime import datetime

import structlog

from mamba_api import names
from mamba_gateway.api_server import MERGE_PATCH, ApiServer, checked, short

log = structlog.get_logger("mambaserve.gateway")

EVERY = 15.0
"""Seconds between two writes while requests are held."""


class Waker:
    """Wakes one MambaDeployment."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        name: str,
        now: Callable[[], datetime],
        every: float = EVERY,
    ) -> None:
        self._server, self._name, self._now, self._every = server, name, now, every
        self._path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
        self._wanted = asyncio.Event()

    def wanted(self) -> None:
        """A request is held: there should be an engine."""
        self._wanted.set()

    async def work(self) -> None:
        """Write for ever when wanted; ends only by cancellation."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self.wake()
                log.info("asked for an engine", deployment=self._name)
            except Exception as error:
                # The request that is held now must not be the last one that could wake the deployment.
                log.warning("could not ask for an engine", deployment=self._name, error=short(error))
            await asyncio.sleep(self._every)

    async def wake(self) -> None:
        """Write the annotation once. Raises what the client raises."""
        annotations = {names.ANNOTATION_WAKE: self._now().isoformat(timespec="seconds")}
        response = await self._server.request(
            "PATCH",
            self._path,
            query={"fieldManager": "mambaserve-gateway"},
            body={"metadata": {"annotations": annotations}},
            content_type=MERGE_PATCH,
        )
        with contextlib.closing(response):
            await checked(response)
