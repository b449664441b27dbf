"""Which checkpoint or leaf goes first: the least recently used, or what promises least for what it takes.

RecomputeCost weighs a checkpoint by the tokens that keeping it saves per request and slab: the rate at
which its class returns at its age (the ghost tree counts that), times the tokens from the nearest shallower
checkpoint, over the slabs of its state and of the pages that only it can resume. That is the slope of the
bound on what a cache of this size can save. Called by the tree, the reclaimer and the state cache.
"""

import heapq
import itertools
import math
from typing import Literal

from mamba_server.cache.ghosts import Ghost, GhostTree
from mamba_server.cache.node import Node

Policy = Literal["RecomputeCost", "LRU"]


class Eviction:
    """A lazily repaired heap of nodes; entries of nodes that changed or are locked are skipped."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._checkpoints = Heap()
        self._bare = Heap()
        self._clock = 0.0
        self._ghosts: GhostTree | None = None
        self._pages_per_slab = 0

    def foresee(self, ghosts: GhostTree, pages_per_slab: int) -> None:
        """Take the rates of return from `ghosts`. `pages_per_slab`: 0 where pages take no memory."""
        self._ghosts = ghosts
        self._pages_per_slab = pages_per_slab

    def used(self, node: Node) -> None:
        """`node` was made or resumed from just now."""
        self._clock += 1.0
        node.used_at = self._clock
        node.priority = self.weigh(node)
        self.offer(node)

    def weigh(self, node: Node) -> float:
        """What `node` is worth just now: the least goes first."""
        if self.policy == "LRU" or not node.slot:
            return node.used_at
        # Of what the ghost tree has forgotten nothing is known but that it is old.
        unknown = self._ghosts.unknown if self._ghosts is not None else 1.0
        rate = node.ghost.rate if node.ghost is not None else unknown
        return self.worth(rate, node.depth - node.checkpoint_above(), node.own_pages())

    def worth(self, rate: float, tokens: int, pages: int) -> float:
        """Tokens saved per request and slab: a checkpoint that returns at `rate`, with `pages` of its own."""
        slabs = 1 + pages / self._pages_per_slab if self._pages_per_slab else 1.0
        return rate * tokens / slabs

    def inherit(self, node: Node | None, ghost: Ghost | None) -> None:
        """There is no checkpoint at `ghost`: who comes back to it resumes at `node`, the nearest above."""
        if node is not None and node.ghost is not None and ghost is not None and node.ghost.serves(ghost):
            self.offer(node)

    def least(self) -> float:
        """The worth of the next victim; infinite if there is none."""
        while (node := self.checkpoint()) is not None:
            # A locked one is offered again when it is unlocked.
            if not node.state_lock:
                self.offer(node)
                return node.priority
        return math.inf

    def offer(self, node: Node) -> None:
        """`node` may be a victim (again)."""
        node.priority = self.weigh(node)
        node.stamp += 1
        (self._checkpoints if node.slot else self._bare).push(node)

    def bare(self) -> Node | None:
        """The least recently used node without a checkpoint, out of the heap; None if there is none."""
        return self._bare.pop()

    def checkpoint(self) -> Node | None:
        """The node with the least valuable checkpoint, out of the heap; None if there is none."""
        while (node := self._checkpoints.pop()) is not None:
            current = self.weigh(node)
            if current > node.priority:
                # The checkpoint above it is gone since: losing this one too costs more than was thought.
                self.offer(node)
                continue
            return node
        return None

    def evicted(self, node: Node) -> None:
        """`node` is the victim: the checkpoint above it serves who comes back."""
        self.inherit(node.above(), node.ghost)


class Heap:
    """Nodes by priority. An entry is out of date once its node's stamp has changed or it left the tree."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, int, Node]] = []
        self._order = itertools.count()
        self._compact_at = 4096

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, node: Node) -> None:
        heapq.heappush(self._entries, (node.priority, next(self._order), node.stamp, node))
        if len(self._entries) > self._compact_at:
            self._entries = [entry for entry in self._entries if entry[2] == entry[3].stamp]
            heapq.heapify(self._entries)
            self._compact_at = max(4096, 2 * len(self._entries))

    def pop(self) -> Node | None:
        while self._entries:
            _, _, stamp, node = heapq.heappop(self._entries)
            if stamp == node.stamp and node.parent is not None:
                return node
        return None
