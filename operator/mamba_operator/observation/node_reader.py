"""`NodeReader`: reads the nodes with GPUs, by which the memory of engines is planned.

Called by `observe`; `reconcile` checks how old the list is. The nodes are listed as whole objects, because
their taints are not part of the metadata; they are read in small pages, of which only a few facts are kept.
Passes share a list for some seconds, so that a thousand objects do not each list several megabytes.
"""

import asyncio
import time
from collections.abc import Callable

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import Forbidden
from mamba_operator.objects.kinds import NODE
from mamba_operator.observation.placement import Node, node_of

NODES_PER_PAGE = 50
"""Number of nodes that are decoded at a time: 1.2 MB of JSON, mostly images and managed fields, which take 8
MiB as Python objects."""
SHARED_SECONDS = 10.0
"""Seconds for which passes share a list. New nodes need longer than that to get their labels."""
VALID_SECONDS = 300.0
"""Seconds for which a list is recent enough to conclude that a plan is unchanged."""


class NodeReader:
    """Reads the nodes with GPUs for all passes, at most once in `SHARED_SECONDS`."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self.nodes: tuple[Node, ...] = ()
        """Nodes with GPUs as they were last read."""

    @property
    def is_old(self) -> bool:
        """Whether the list of nodes is too old to conclude from it that a plan is unchanged."""
        return self._clock() - self._read_at > VALID_SECONDS

    async def read(self) -> tuple[Node, ...]:
        """Return the nodes with GPUs, at most some seconds old; none where the operator may not read them.

        Raises:
            ClusterError: the API server did not give an answer.
        """
        async with self._lock:
            now = self._clock()
            if now - self._read_at > SHARED_SECONDS:
                self.nodes = await self._list()
                self._read_at = now
            return self.nodes

    async def _list(self) -> tuple[Node, ...]:
        pages = self._client.pages(NODE, None, selector=names.LABEL_GPU_MEMORY, page=NODES_PER_PAGE)
        try:
            return tuple([node_of(manifest) async for page in pages for manifest in page])
        except Forbidden:
            # An operator of some namespaces may not read nodes; the spec then has to state the memory.
            return ()
