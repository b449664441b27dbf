"""`NamespaceClaims`: of several releases that were told to serve a namespace one does, and the others say so.

A Lease in each namespace with MambaDeployments, held by all operators of a release in common. Called by the
work queue in the place of the reconciler, which it lets look at nothing where another release acts.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError
from mamba_operator.objects.manifest import Key
from mamba_operator.process.leadership import SAFETY, Leadership, LeaseName

log = structlog.get_logger(__name__)
DURATION = 60.0
"""Seconds that a release which is gone keeps a namespace."""
RENEW_EVERY = 15.0
Work = Callable[[Key], Awaitable[float | None]]
Told = Callable[[Key, str], None]
"""Takes an object that is left to another, and the sentence about it."""


class Claim:
    """One namespace."""

    def __init__(self, client: KubeClient, namespace: str, holder: str) -> None:
        lease = LeaseName(namespace, names.CLAIM_NAME, holder, DURATION, RENEW_EVERY)
        self._namespace, self._lease = namespace, Leadership(client, lease)
        self._looking = asyncio.Lock()
        self._asked = self._renewed = float("-inf")
        self.other: str | None = None
        """Who holds it, where that is not us."""

    @property
    def holds(self) -> bool:
        """Whether we may act."""
        return asyncio.get_running_loop().time() - self._renewed < DURATION * SAFETY

    async def look(self) -> bool:
        """Whether we may act; asks the cluster where that is not known. Raises ClusterError."""
        async with self._looking:
            old = asyncio.get_running_loop().time() - self._asked >= RENEW_EVERY
            if not self.holds and (old or self.other is None):
                await self.renew()
            return self.holds

    async def renew(self) -> None:
        """One look and one write at most. Raises ClusterError."""
        asked = asyncio.get_running_loop().time()
        mine = await self._lease.step()
        self._asked, self._renewed = asked, asked if mine else float("-inf")
        before, self.other = self.other, None if mine else self._lease.holder
        if self.other is not None and self.other != before:
            advice = "uninstall one of them, or give each release watchNamespaces of its own"
            log.error("namespace_of_another", namespace=self._namespace, served_by=self.other, advice=advice)
        elif before is not None and mine:
            log.info("namespace_taken_over", namespace=self._namespace, served_by_before=before)


class NamespaceClaims:
    """Of one operator that acts; `run` has to run beside it."""

    def __init__(self, client: KubeClient, holder: str, work: Work, told: Told) -> None:
        """`holder`: what the operators of a release call themselves in common."""
        self._client, self._holder = client, holder
        self._work, self._told = work, told
        self._claims: dict[str, Claim] = {}
        self._left: dict[Key, str] = {}
        """To whom each object was said to be left."""

    async def __call__(self, key: Key) -> float | None:
        """Does the work, or leaves it to another and looks again later.

        Raises:
            ClusterError: whose the namespace is could not be asked, or what the work raises.
        """
        claim = self._claims.setdefault(key.namespace, Claim(self._client, key.namespace, self._holder))
        try:
            mine = claim.holds or await claim.look()
        except ClusterError as error:
            log.warning("namespace_not_claimed", namespace=key.namespace, error=str(error))
            raise
        if mine:
            self._left.pop(key, None)
            return await self._work(key)
        if claim.other is not None and self._left.get(key) != claim.other:
            self._left[key] = claim.other
            self._told(
                key, f"Left by the operator {self._holder} to {claim.other}, which serves the namespace"
            )
        return RENEW_EVERY

    async def run(self) -> None:
        """Renew what is held until cancelled."""
        while True:
            await asyncio.sleep(RENEW_EVERY)
            for namespace, claim in list(self._claims.items()):
                if not claim.holds:
                    # Of a namespace that went there is nothing to hold; a pass asks for it anew.
                    if claim.other is None:
                        del self._claims[namespace]
                    continue
                try:
                    await claim.renew()
                except ClusterError as error:
                    log.warning("namespace_not_claimed", namespace=namespace, error=str(error))
