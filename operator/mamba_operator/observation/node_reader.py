"""`NodeReader`: what the plans of all objects know of the nodes with GPUs.

Called by `observe`; `reconcile` asks how old it is. Nodes are listed whole, since taints are no metadata, in
small pages of which next to nothing is kept. So that a thousand objects do not each list some megabytes,
passes share what was read a few seconds ago.
"""

import asyncio
import time
from collections.abc import Callable

from mamba_api import names
from mamba_operator.objects.client import KubeClient
from mamba_operator.objects.errors import Forbidden
from mamba_operator.objects.kinds import NODE
from mamba_operator.observation.placement import Node, node_of

PAGE = 50
"""Nodes decoded at a time: 1.2 MB of JSON, mostly images and who wrote which field, and 8 MiB as objects."""
SHARED_FOR = 10.0
"""Seconds for which a list is as good as a fresh one: whoever adds nodes waits longer for their labels."""
KEPT_FOR = 300.0
"""Seconds for which a list is good enough to say that a plan would be the same."""


class NodeReader:
    """Reads nodes for passes; one for all of them."""

    def __init__(self, client: KubeClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_at = float("-inf")
        self.nodes: tuple[Node, ...] = ()
        """As last read."""

    @property
    def is_old(self) -> bool:
        """Whether nodes have to be read again before anything is said of a plan that depends on them."""
        return self._clock() - self._read_at > KEPT_FOR

    async def read(self) -> tuple[Node, ...]:
        """The nodes with GPUs, not older than some seconds; none where the operator may not read them.

        Raises:
            ClusterError: the API server did not give an answer.
        """
        async with self._lock:
            asked = self._clock()
            if asked - self._read_at > SHARED_FOR:
                self.nodes = await self._listed()
                self._read_at = asked
            return self.nodes

    async def _listed(self) -> tuple[Node, ...]:
        pages = self._client.pages(NODE, None, selector=names.LABEL_GPU_MEMORY, page=PAGE)
        try:
            return tuple([node_of(one) async for page in pages for one in page])
        except Forbidden:
            # An operator of some namespaces may not read nodes: then the spec has to say it.
            return ()
