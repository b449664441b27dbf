"""`NodeReader`: reads the nodes with GPUs for the memory plans of all objects.

Called by `observe`; `reconcile` asks for the age of the list. Nodes are listed completely, because taints are
no metadata, in small pages of which little is kept. Passes share a list that is a few seconds old, so that a
thousand objects do not each list some megabytes.
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
"""Nodes decoded at a time: 1.2 MB of JSON, mostly images and managed fields, and 8 MiB as objects."""
SHARED_SECONDS = 10.0
"""Seconds for which passes share a list; new nodes need longer than that to get their labels."""
VALID_SECONDS = 300.0
"""Seconds for which a list may show that a plan is unchanged."""


class NodeReader:
    """Reader of nodes that all passes share."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self.nodes: tuple[Node, ...] = ()
        """Nodes with GPUs as they were last read."""

    @property
    def is_old(self) -> bool:
        """Whether the nodes have to be read again before a plan that depends on them is known."""
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
