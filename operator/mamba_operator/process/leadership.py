"""`Leadership`: holds the Lease that lets one operator act at a time; its loss ends the process.

`hold` waits for the lease, then runs the work. When renewals have failed for so long that another operator
may take over, the work is cancelled. Once the work has ended, the lease is released, so that the next
operator starts at once. docs/adr/0030 has the reasons.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Conflict, LeadershipLost, NotFound, PassHangs
from mamba_operator.objects.kinds import LEASE
from mamba_operator.objects.manifest import Manifest
from mamba_operator.process.lease import LeaseAction, LeaseRecord, ObservedLease, lease_action, observe_lease

log = structlog.get_logger(__name__)
VALID_SHARE = 0.7
"""Share of the lease's duration after which an operator without a renewal stops, well before others start."""
RELEASE_SECONDS = 3.0
"""Longest wait for the release of the lease, which otherwise expires by itself."""
STANDBY_POLL_SECONDS = 1.0
"""Seconds between two polls of a standby: a holder that ends releases the lease early."""


@dataclass(frozen=True, slots=True)
class LeaseName:
    """The lease that an operator takes, the name by which it takes the lease, and the times of the lease."""

    namespace: str
    name: str
    identity: str
    duration: float
    """Seconds after which another operator may take the lease."""
    renew_every: float
    """Seconds between two renewals."""


class Leadership:
    """Takes a lease, which only one operator can hold at a time, and renews it while work runs."""

    def __init__(self, client: KubeClient, lease: LeaseName) -> None:
        self._client = client
        self._lease = lease
        self._watched: ObservedLease | None = None
        self._current: Manifest | None = None
        self.holds = False
        """Whether this process holds the lease and may act now."""
        self.informed = False
        """Whether the lease was ever read: a standby that could take over is as ready as the holder."""

    @property
    def holder(self) -> str | None:
        """Holder of the lease when it was last read, before any write; None = nobody held it."""
        return self._watched.record.holder if self._watched else None

    async def hold(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, then run `work` while this process holds it.

        Raises:
            LeadershipLost: another operator may act now; `work` was cancelled first.
        """
        await self._acquire()
        self.holds = True
        log.info("lease_taken", lease=self._lease.name, identity=self._lease.identity)
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew())
        try:
            done, _ = await asyncio.wait({working, renewing}, return_when=asyncio.FIRST_COMPLETED)
            if working in done:
                working.result()
                return
            renewing.result()
        finally:
            self.holds = False
            for task in (working, renewing):
                task.cancel()
            ended, _ = await asyncio.gather(working, renewing, return_exceptions=True)
            if isinstance(ended, PassHangs):
                log.error("lease_kept", error=str(ended))
            else:
                await self._release_in_time()

    async def _acquire(self) -> None:
        logged_holder = ""
        while True:
            try:
                if await self.step():
                    return
                if (holder := self.holder) and holder != logged_holder:
                    logged_holder = holder
                    log.info("lease_awaited", lease=self._lease.name, holder=holder)
            except ClusterError as error:
                log.warning("lease_unavailable", error=str(error))
            await asyncio.sleep(min(STANDBY_POLL_SECONDS, self._lease.renew_every))

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._lease.renew_every)
            try:
                async with asyncio.timeout_at(renewed + self._lease.duration * VALID_SHARE):
                    requested_at = loop.time()
                    if await self.step():
                        renewed = requested_at
                    elif self.holder != self._lease.identity:
                        raise LeadershipLost("another operator holds the lease")
            except TimeoutError:
                raise LeadershipLost("the lease could not be renewed in time") from None
            except ClusterError as error:
                log.warning("lease_not_renewed", error=str(error))
                if loop.time() - renewed > self._lease.duration * VALID_SHARE:
                    raise LeadershipLost("the lease could not be renewed in time") from error

    @property
    def lasts(self) -> float:
        """Duration in seconds that the holder requested, as last read; 0 = there is no lease."""
        return self._watched.record.duration if self._watched is not None else 0.0

    async def step(self, duration: float | None = None) -> bool:
        """Read the lease and write it at most once; return whether this process holds it afterwards.

        It does not if another process holds the lease, or was faster to write it. `duration` is the seconds
        to request from now on; None = as before.
        """
        if duration is not None:
            self._lease = replace(self._lease, duration=duration)
        self._current = await self._client.get(LEASE, self._lease.namespace, self._lease.name)
        self.informed = True
        now = asyncio.get_running_loop().time()
        record = _record(self._current)
        self._watched = observe_lease(self._watched, record, now) if record else None
        move = lease_action(self._watched, self._lease.identity, now)
        if move is LeaseAction.WAIT:
            return False
        try:
            if self._current is None:
                await self._client.create(self._manifest(None, move, record))
            else:
                await self._client.replace(self._manifest(self._current, move, record))
        except Conflict:
            # Another process was faster; a holder that lost a race sees the winner at the next read.
            return False
        return True

    async def _release_in_time(self) -> None:
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._release()
        except (ClusterError, TimeoutError) as error:
            log.warning("lease_not_given_back", error=str(error) or "no answer")

    async def _release(self) -> None:
        current = await self._client.get(LEASE, self._lease.namespace, self._lease.name)
        if current is None or (current.get("spec") or {}).get("holderIdentity") != self._lease.identity:
            return
        spec = {**current["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        with contextlib.suppress(Conflict, NotFound):
            await self._client.replace({**current, "kind": LEASE.kind, "spec": spec})
            log.info("lease_given_back", lease=self._lease.name, identity=self._lease.identity)

    def _manifest(self, current: Manifest | None, move: LeaseAction, record: LeaseRecord | None) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: dict[str, Any] = {
            **((current or {}).get("spec") or {}),
            "holderIdentity": self._lease.identity,
            "leaseDurationSeconds": max(round(self._lease.duration), 1),
            "renewTime": now,
        }
        if move is LeaseAction.TAKE:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = record.transitions + 1 if record else 0
        head = current or {"metadata": {"name": self._lease.name, "namespace": self._lease.namespace}}
        return {**head, "apiVersion": LEASE.api_version, "kind": LEASE.kind, "spec": spec}


def _record(lease: Manifest | None) -> LeaseRecord | None:
    if lease is None:
        return None
    spec = lease.get("spec") or {}
    return LeaseRecord(
        spec.get("holderIdentity"),
        str(lease["metadata"].get("resourceVersion", "")),
        float(spec.get("leaseDurationSeconds") or 0),
        int(spec.get("leaseTransitions") or 0),
    )
