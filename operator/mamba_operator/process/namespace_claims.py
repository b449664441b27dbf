"""`NamespaceClaims`: lets only one of several releases that serve a namespace reconcile it.

A claim is a Lease in each namespace with MambaDeployments. All operators of a release share the holder's
identity. The work queue calls `NamespaceClaims` in place of the reconciler, which is called only where this
release holds the claim; other objects are reported as left to the other release.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Forbidden, NotFound
from mamba_operator.objects.manifest import Key
from mamba_operator.process.leadership import VALID_SHARE, Leadership, LeaseName

log = structlog.get_logger(__name__)
RENEW_EVERY = 15.0
"""Seconds between two renewals of a claim, where there are few."""
SECONDS_PER_NAMESPACE = 8.0
"""Seconds by which each namespace prolongs the period of renewals, if there are many: each renewal takes two
requests."""
DURATION_PERIODS = 4.0
"""Duration of a claim, in periods of its renewals."""
Work = Callable[[Key], Awaitable[float | None]]
LEFT_TO_ANOTHER = "LeftToAnother"
OnSkipped = Callable[[Key, str, str], None]
"""Function that is called with an object that is left alone, the reason of the event, and its message."""
Exists = Callable[[Key], bool]
"""Function that returns whether the object still exists."""


class Claim:
    """Takes and renews the Lease by which one release of the operator claims one namespace."""

    def __init__(self, client: KubeClient, namespace: str, holder: str) -> None:
        lease = LeaseName(namespace, names.CLAIM_NAME, holder, DURATION_PERIODS * RENEW_EVERY, RENEW_EVERY)
        self._namespace, self._lease = namespace, Leadership(client, lease)
        self._lock = asyncio.Lock()
        self._renewed_at = float("-inf")
        self.valid_until = float("-inf")
        """Time of the loop's clock until which this release holds the claim; -inf = it does not hold it."""
        self.other_holder: str | None = None
        """Other release that holds the claim; None = this release, or unknown."""

    @property
    def holds(self) -> bool:
        """Whether this release holds the claim now."""
        return asyncio.get_running_loop().time() < self.valid_until

    async def acquire(self, period: float) -> bool:
        """Take the claim if no other release holds it, and return whether this release holds it now.

        `period` is the seconds for which the cluster's last answer is valid. Raises ClusterError.
        """
        async with self._lock:
            old = asyncio.get_running_loop().time() - self._renewed_at >= self.next_look(period)
            if not self.holds and (old or self.other_holder is None):
                await self.renew(period)
            return self.holds

    def next_look(self, period: float) -> float:
        """Return the seconds until the next read; another release's claim may end before the period does."""
        return min(period, max(self._lease.lasts, RENEW_EVERY)) if self.other_holder is not None else period

    async def renew(self, period: float) -> None:
        """Read the Lease, and write it at most once. Raises ClusterError.

        `period` is the seconds until the next renewal.
        """
        requested_at, duration = asyncio.get_running_loop().time(), DURATION_PERIODS * period
        acquired = await self._lease.step(duration)
        self._renewed_at, self.valid_until = (
            requested_at,
            requested_at + duration * VALID_SHARE if acquired else float("-inf"),
        )
        before, self.other_holder = self.other_holder, None if acquired else self._lease.holder
        if self.other_holder is not None and self.other_holder != before:
            advice = "uninstall one of the two releases, or give each its own watchNamespaces"
            log.error(
                "namespace_of_another", namespace=self._namespace, served_by=self.other_holder, advice=advice
            )
        elif before is not None and acquired:
            log.info("namespace_taken_over", namespace=self._namespace, served_by_before=before)


class NamespaceClaims:
    """Lets an operator reconcile only objects in namespaces that no other release has claimed.

    Its method `run`, which renews the claims, must run in a task of its own.
    """

    def __init__(
        self, client: KubeClient, holder: str, work: Work, on_skipped: OnSkipped, exists: Exists
    ) -> None:
        """Create the object without any claim.

        Args:
            client: the API server.
            holder: identity that all operators of this release share.
            work: called with each object whose namespace this release has claimed.
            on_skipped: called with each object that is left to another release.
            exists: returns whether an object still exists.
        """
        self._client, self._holder = client, holder
        self._work, self._on_skipped, self._exists = work, on_skipped, exists
        self._claims: dict[str, Claim] = {}
        self._reported: dict[Key, str] = {}
        """By object that is left alone: the message that was reported last."""

    async def __call__(self, key: Key) -> float | None:
        """Reconcile the object, or leave it to another release and check again later while it exists.

        Return the seconds until the next call; None = no further one is needed.

        Raises:
            ClusterError: the claim could not be read; errors of the work pass through, too.
        """
        claim = self._claims.get(key.namespace)
        if claim is None:
            claim = self._claims[key.namespace] = Claim(self._client, key.namespace, self._holder)
        try:
            mine = claim.holds or await claim.acquire(self._period)
        except NotFound:
            # A deleted namespace has no holder; the pass finds nothing in it and is the last one.
            self._claims.pop(key.namespace, None)
            self._reported.pop(key, None)
            return await self._work(key)
        except ClusterError as error:
            log.warning("namespace_not_claimed", namespace=key.namespace, error=str(error))
            if isinstance(error, Forbidden):
                # Another release may own the status, so only an event can report this at the object.
                message = (
                    f"The operator may not read the claim on the namespace, and serves nothing in it: {error}"
                )
                self._report_skipped(key, Reason.FORBIDDEN, message)
            raise
        if mine:
            self._reported.pop(key, None)
            return await self._work(key)
        if not self._exists(key):
            self._reported.pop(key, None)
            return None
        if claim.other_holder is not None:
            other = f"{claim.other_holder}, which serves the namespace"
            message = f"The operator {self._holder} leaves this object to {other}"
            self._report_skipped(key, LEFT_TO_ANOTHER, message)
        return claim.next_look(self._period)

    def _report_skipped(self, key: Key, reason: str, message: str) -> None:
        """Report a skipped object once, until the message changes."""
        if self._reported.get(key) != message:
            self._reported[key] = message
            self._on_skipped(key, reason, message)

    async def run(self) -> None:
        """Renew the held claims until cancelled, one namespace after the other."""
        while True:
            await asyncio.sleep(self._period / max(len(self._claims), 1))
            held = []
            for namespace, claim in list(self._claims.items()):
                if claim.holds:
                    held.append((claim.valid_until, namespace))
                elif claim.other_holder is None:
                    # The namespace was deleted, or the claim expired: the next pass creates the claim again.
                    del self._claims[namespace]
            if held:
                await self._renew(min(held)[1])

    async def shorten(self) -> None:
        """Let the held claims expire within a minute; claims on many namespaces last for hours.

        Called at a clean exit: another operator of this release continues at once, and another release does
        not wait for one that has ended.
        """
        if self._period <= RENEW_EVERY:
            return
        await asyncio.gather(*(self._shorten(claim) for claim in self._claims.values() if claim.holds))

    async def _shorten(self, claim: Claim) -> None:
        try:
            await claim.renew(RENEW_EVERY)
        except ClusterError as error:
            log.warning("claim_not_shortened", error=str(error))

    async def _renew(self, namespace: str) -> None:
        try:
            await self._claims[namespace].renew(self._period)
        except NotFound:
            self._claims.pop(namespace, None)
        except ClusterError as error:
            log.warning("namespace_not_claimed", namespace=namespace, error=str(error))

    @property
    def _period(self) -> float:
        """Seconds in which each claim is renewed once."""
        return max(RENEW_EVERY, SECONDS_PER_NAMESPACE * len(self._claims))
