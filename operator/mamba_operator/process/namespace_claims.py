"""`NamespaceClaims`: of several releases that are configured for a namespace, only one reconciles it.

The claim is a Lease in each namespace with MambaDeployments, held by all operators of a release in common.
Called by the work queue in place of the reconciler, which it calls only where this release holds the claim;
elsewhere it reports the objects as left to the other release.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Forbidden, NotFound
from mamba_operator.objects.manifest import Key
from mamba_operator.process.leadership import SAFETY, Leadership, LeaseName

log = structlog.get_logger(__name__)
RENEW_EVERY = 15.0
"""Seconds between two renewals of a claim, where there are few."""
EACH = 8.0
"""Seconds for each namespace, where there are many: two requests in that time, however many there are."""
LASTS = 4.0
"""Times the period of its renewals that a claim lasts."""
Work = Callable[[Key], Awaitable[float | None]]
LEFT_TO_ANOTHER = "LeftToAnother"
OnSkipped = Callable[[Key, str, str], None]
"""Called with an object that is left alone, the reason of the event, and its message."""
Exists = Callable[[Key], bool]
"""Whether there still is such an object."""


class Claim:
    """One namespace."""

    def __init__(self, client: KubeClient, namespace: str, holder: str) -> None:
        lease = LeaseName(namespace, names.CLAIM_NAME, holder, LASTS * RENEW_EVERY, RENEW_EVERY)
        self._namespace, self._lease = namespace, Leadership(client, lease)
        self._lock = asyncio.Lock()
        self._renewed_at = float("-inf")
        self.valid_until = float("-inf")
        """Time of the loop's clock until which this release holds the claim; -inf = it does not."""
        self.other_holder: str | None = None
        """Release that holds the claim, where it is another one; None = this one, or not known yet."""

    @property
    def holds(self) -> bool:
        """Whether this release holds the claim now."""
        return asyncio.get_running_loop().time() < self.valid_until

    async def acquire(self, period: float) -> bool:
        """Take the claim if nobody else holds it; returns whether this release holds it now.

        `period`: seconds for which the last answer of the cluster is good. Raises ClusterError.
        """
        async with self._lock:
            old = asyncio.get_running_loop().time() - self._renewed_at >= self.next_look(period)
            if not self.holds and (old or self.other_holder is None):
                await self.renew(period)
            return self.holds

    def next_look(self, period: float) -> float:
        """Return the seconds until the next look; another release's claim may end before a period does."""
        return min(period, max(self._lease.lasts, RENEW_EVERY)) if self.other_holder is not None else period

    async def renew(self, period: float) -> None:
        """Read the Lease, and write it at most once; the next renewal is in `period` seconds. Raises
        ClusterError."""
        requested_at, duration = asyncio.get_running_loop().time(), LASTS * period
        acquired = await self._lease.step(duration)
        self._renewed_at, self.valid_until = (
            requested_at,
            requested_at + duration * SAFETY if acquired else float("-inf"),
        )
        before, self.other_holder = self.other_holder, None if acquired else self._lease.holder
        if self.other_holder is not None and self.other_holder != before:
            advice = "uninstall one of them, or give each release watchNamespaces of its own"
            log.error(
                "namespace_of_another", namespace=self._namespace, served_by=self.other_holder, advice=advice
            )
        elif before is not None and acquired:
            log.info("namespace_taken_over", namespace=self._namespace, served_by_before=before)


class NamespaceClaims:
    """Of one operator that acts; `run` has to run beside it."""

    def __init__(
        self, client: KubeClient, holder: str, work: Work, on_skipped: OnSkipped, exists: Exists
    ) -> None:
        """`holder`: identity that all operators of this release share."""
        self._client, self._holder = client, holder
        self._work, self._on_skipped, self._exists = work, on_skipped, exists
        self._claims: dict[str, Claim] = {}
        self._reported: dict[Key, str] = {}
        """By object that is left alone: the message that was reported last."""

    async def __call__(self, key: Key) -> float | None:
        """Does the work, or leaves it to another and looks again later, as long as the object is there.

        Raises:
            ClusterError: whose the namespace is could not be asked, or what the work raises.
        """
        claim = self._claims.get(key.namespace)
        if claim is None:
            claim = self._claims[key.namespace] = Claim(self._client, key.namespace, self._holder)
        try:
            mine = claim.holds or await claim.acquire(self._period)
        except NotFound:
            # A namespace that went is nobody's; a pass finds nothing there, and that was the last one.
            self._claims.pop(key.namespace, None)
            self._reported.pop(key, None)
            return await self._work(key)
        except ClusterError as error:
            log.warning("namespace_not_claimed", namespace=key.namespace, error=str(error))
            if isinstance(error, Forbidden):
                # The status may be another's: nobody but an event can tell of it at the object.
                said = f"The operator may not ask whose the namespace is, and serves nothing in it: {error}"
                self._report_skipped(key, Reason.FORBIDDEN, said)
            raise
        if mine:
            self._reported.pop(key, None)
            return await self._work(key)
        if not self._exists(key):
            self._reported.pop(key, None)
            return None
        if claim.other_holder is not None:
            said = f"Left by the operator {self._holder} to {claim.other_holder}, which serves the namespace"
            self._report_skipped(key, LEFT_TO_ANOTHER, said)
        return claim.next_look(self._period)

    def _report_skipped(self, key: Key, reason: str, message: str) -> None:
        """Report it once, until the message changes."""
        if self._reported.get(key) != message:
            self._reported[key] = message
            self._on_skipped(key, reason, message)

    async def run(self) -> None:
        """Renew what is held until cancelled, one namespace after the other."""
        while True:
            await asyncio.sleep(self._period / max(len(self._claims), 1))
            held = []
            for namespace, claim in list(self._claims.items()):
                if claim.holds:
                    held.append((claim.valid_until, namespace))
                elif claim.other_holder is None:
                    # Of a namespace that went there is nothing to hold; a pass asks for it anew.
                    del self._claims[namespace]
            if held:
                await self._renew(min(held)[1])

    async def shorten(self) -> None:
        """Let what is held end within a minute, where it was held for longer, of many namespaces for hours.

        Called at a clean end: another operator of this release goes on at once, and another release does not
        wait for one that is gone."""
        if self._period <= RENEW_EVERY:
            return
        await asyncio.gather(*(self._shorten(one) for one in self._claims.values() if one.holds))

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
        """Seconds in which each namespace is looked at once."""
        return max(RENEW_EVERY, EACH * len(self._claims))
