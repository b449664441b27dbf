"""`PodPoller`: polls the pods of every MambaDeployment periodically and keeps the latest report of each.

Base of the pollers of one active operator. They run beside the reconcile passes, so a pod that does not
answer delays none of them, and write nothing to the cluster.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

import structlog

from mamba_operator.objects.indices import Indices
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT
from mamba_operator.objects.manifest import Key

log = structlog.get_logger(__name__)
Selection = TypeVar("Selection")
"""Selection of one deployment: its pods, or the facts that decide which pods are read."""
Report = TypeVar("Report")
"""State that a poller keeps of one deployment between two polls."""


class PodPoller(ABC, Generic[Selection, Report]):
    """Base of the pollers, each of which reads one kind of report from the pods of all deployments.

    Args:
        indices: the objects of each deployment, as the operator's watches last saw them.
        wake: called with each deployment whose report a pass has to look at.
        period: seconds from the beginning of one poll to the beginning of the next.
        failure_event: log event for a deployment whose poll raised an exception.
        now: monotonic clock, in seconds.
    """

    def __init__(
        self,
        indices: Indices,
        wake: Callable[[Key], None],
        *,
        period: float,
        failure_event: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._indices, self._wake, self._now = indices, wake, now
        self._period, self._failure_event = period, failure_event
        self._reports: dict[Key, Report] = {}

    async def run(self) -> None:
        """Poll periodically, until the task is cancelled."""
        while True:
            began = self._now()
            await self.poll()
            await asyncio.sleep(max(self._period - (self._now() - began), self._period / 10))

    async def poll(self) -> None:
        """Poll every deployment once, all concurrently, and forget those that are no longer polled."""
        selections = {
            key: selection
            for key in self._indices.keys(MAMBA_DEPLOYMENT)
            if (selection := self._select(key)) is not None
        }
        for key in self._reports.keys() - selections.keys():
            self._forget(key)
        polls = {key: self._poll(key, selection) for key, selection in selections.items()}
        await run_concurrently(polls, self._failure_event)

    async def _poll(self, key: Key, selection: Selection) -> None:
        if await self._update(key, selection):
            self._wake(key)

    @abstractmethod
    def _select(self, key: Key) -> Selection | None:
        """Return what to poll of a deployment; None if it is not polled now."""

    @abstractmethod
    async def _update(self, key: Key, selection: Selection) -> bool:
        """Read the pods and keep their report; return whether a pass has to look at it."""

    def _forget(self, key: Key) -> None:
        """Drop the report of a deployment that is no longer polled."""
        del self._reports[key]


async def run_concurrently(work: Mapping[Key, Awaitable[None]], failure_event: str) -> None:
    """Run the work of all deployments. A failure is logged as `failure_event` and stops no other work."""
    results = await asyncio.gather(*work.values(), return_exceptions=True)
    for key, error in zip(work, results, strict=True):
        if isinstance(error, Exception):
            log.error(failure_event, key=str(key), error=repr(error))
