"""Which checkpoint or leaf goes first: least recently used, or recency against recompute cost.

RecomputeCost is GreedyDual-Size (Cao and Irani, 1997): an entry's priority is the clock at its last use plus
its cost, and the clock rises to the priority of whatever is evicted. The cost of a checkpoint is the tokens
to recompute from the nearest shallower one; FLOPs per token and bytes per state are the same for every
checkpoint of a model, so they only scale it. Called by the tree and the state cache.
"""

import heapq
import itertools
from typing import Literal, Self

from mamba_server.cache.node import Node

Policy = Literal["RecomputeCost", "LRU"]


class Eviction:
    """A lazily repaired heap of nodes; entries of nodes that changed or are locked are skipped."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._heap: list[tuple[float, int, int, Node]] = []
        self._order = itertools.count()
        self._clock = 0.0
        self._compact_at = 4096

    def used(self, node: Node) -> None:
        """`node` was made or hit just now."""
        if self.policy == "LRU":
            self._clock += 1.0
            node.priority = self._clock
        else:
            cost = node.depth - node.checkpoint_above() if node.slot else 0
            node.priority = self._clock + cost
        self.offer(node)

    def offer(self, node: Node) -> None:
        """`node` may be a victim (again)."""
        node.stamp += 1
        heapq.heappush(self._heap, (node.priority, next(self._order), node.stamp, node))
        if len(self._heap) > self._compact_at:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].stamp]
            heapq.heapify(self._heap)
            self._compact_at = max(4096, 2 * len(self._heap))

    def victims(self) -> "VictimQueue":
        """Nodes from the least valuable up. What is not taken goes back when the queue is closed."""
        return VictimQueue(self)

    def pop(self) -> Node | None:
        while self._heap:
            _, _, stamp, node = heapq.heappop(self._heap)
            if stamp == node.stamp and node.parent is not None:
                return node
        return None

    def evicted(self, node: Node) -> None:
        """`node` was the victim: the clock rises to its priority."""
        if self.policy == "RecomputeCost":
            self._clock = max(self._clock, node.priority)


class VictimQueue:
    """One search for victims; use as a context manager."""

    def __init__(self, eviction: Eviction) -> None:
        self._eviction = eviction
        self._passed: list[Node] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._passed:
            if node.parent is not None:
                self._eviction.offer(node)

    def next(self) -> Node | None:
        """The next candidate, or None."""
        return self._eviction.pop()

    def keep(self, node: Node) -> None:
        """Not this one, now: put it back at the end of the search."""
        self._passed.append(node)
