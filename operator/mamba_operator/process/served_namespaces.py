"""`ServedNamespaces`: the configured namespaces that the operator may access at this moment.

The deletion of a namespace also deletes the Role in it, and one forbidden watch would keep kopf from
serving all others. Called by `main`, which restarts its watches when the set changes.
"""

import asyncio
from collections.abc import Sequence

import structlog

from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import ClusterError, Forbidden
from mamba_operator.objects.kinds import MAMBA_DEPLOYMENT

log = structlog.get_logger(__name__)


class ServedNamespaces:
    """Finds out which of the configured namespaces one operator may access now.

    Nothing is probed if the operator serves the whole cluster.
    """

    def __init__(self, client: KubeClient, configured: Sequence[str], period: float) -> None:
        """Prepare to probe the namespaces `configured` every `period` seconds."""
        self._client, self._configured, self._period = client, tuple(configured), period
        self._left_out: frozenset[str] = frozenset()

    async def first(self) -> tuple[str, ...]:
        """Return the accessible namespaces, once there is at least one. Empty = the whole cluster."""
        while self._configured:
            if served := await self._probe():
                return served
            await asyncio.sleep(self._period)
        return ()

    async def wait_for_change(self, served: tuple[str, ...]) -> None:
        """Return when the accessible namespaces are others than `served`; at least one is accessible then.

        A single configured namespace is not probed: its forbidden watch can harm no other.
        """
        while True:
            await asyncio.sleep(self._period)
            if len(self._configured) > 1 and (now := await self._probe()) and now != served:
                return

    async def _probe(self) -> tuple[str, ...]:
        left_out = set(self._left_out)
        for namespace in self._configured:
            try:
                await self._client.list(MAMBA_DEPLOYMENT, namespace, metadata_only=True)
                left_out.discard(namespace)
            except Forbidden as error:
                left_out.add(namespace)
                if namespace not in self._left_out:
                    advice = (
                        "create the namespace and its Role again, or remove it from the operator's settings"
                    )
                    log.error("namespace_left_out", namespace=namespace, error=str(error), advice=advice)
            except ClusterError as error:
                # This error says nothing about the namespace.
                log.warning("namespace_probe_failed", namespace=namespace, error=str(error))
        for namespace in sorted(self._left_out - left_out):
            log.info("namespace_served_again", namespace=namespace)
        self._left_out = frozenset(left_out)
        return tuple(namespace for namespace in self._configured if namespace not in left_out)
