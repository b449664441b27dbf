"""Which checkpoint or leaf goes first: least recently used, or recency against recompute cost.

RecomputeCost is GreedyDual-Size-Frequency (Cherkasova, 1998; GreedyDual-Size: Cao and Irani, 1997): priority
is the clock at the last use plus the cost, times one more than the hits so far, and the clock rises to the
priority of whatever is evicted. The cost of a checkpoint is the tokens to recompute from the nearest
shallower one; FLOPs per token and bytes per state are the same for all of a model, so they only scale it.
Called by the tree and the state cache.
"""

import heapq
import itertools
import math
from typing import Literal

from mamba_server.cache.ghosts import Ghost, GhostTree
from mamba_server.cache.node import Node

Policy = Literal["RecomputeCost", "LRU"]

GUESS = 0.05
"""What a checkpoint on the track-interval grid counts, until its first hit, of one at an end or a branch."""


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
        """Weigh checkpoints by the returns that `ghosts` foresees, and by what of a slab they take."""
        self._ghosts = ghosts
        self._pages_per_slab = pages_per_slab

    def used(self, node: Node, *, hit: bool = False) -> None:
        """`node` was made, or (`hit`) resumed from, just now."""
        if self.policy == "LRU":
            self._clock += 1.0
        node.hits += hit
        node.used_at = self._clock
        node.priority = self._current(node)
        self.offer(node)

    def _current(self, node: Node) -> float:
        if self.policy == "LRU" or not node.slot:
            return node.used_at
        if self._ghosts is not None:
            above = node.checkpoint_above()
            rate = node.ghost.rate if node.ghost is not None else self._ghosts.unknown
            return self.worth(rate, node.depth - above, node.own_pages())
        weight = GUESS if node.guess and not node.hits else 1 + node.hits
        return node.used_at + (node.depth - node.checkpoint_above()) * weight

    def worth(self, rate: float, tokens: int, pages: int) -> float:
        """Tokens saved per request of keeping a slab: what a checkpoint of `rate` gives for what it takes."""
        slabs = 1 + pages / self._pages_per_slab if self._pages_per_slab else 1.0
        return rate * tokens / slabs

    def inherit(self, node: Node | None, ghost: Ghost | None) -> None:
        """There is no checkpoint at `ghost`: who asks for it resumes at `node`, the nearest above."""
        if node is None or node.ghost is None or ghost is None or node.ghost is ghost:
            return
        heir = node.ghost.heir
        if heir is None or heir.rate < ghost.rate:
            node.ghost.heir = ghost
            self.offer(node)

    def least(self) -> float:
        """The worth of the next victim; infinite if there is none."""
        while (node := self.checkpoint()) is not None:
            if not node.state_lock:
                self.offer(node)
                return node.priority
        return math.inf

    def offer(self, node: Node) -> None:
        """`node` may be a victim (again)."""
        if self._ghosts is not None and node.slot:
            node.priority = self._current(node)
        node.stamp += 1
        (self._checkpoints if node.slot else self._bare).push(node)

    def displaces(self, tokens: int) -> bool:
        """Whether a new checkpoint, `tokens` past the one above it and never hit, is worth an old one.

        A guess at where prompts part must not push out what has proved itself. LRU cannot tell them apart, so
        there it displaces nothing.
        """
        if self.policy == "LRU":
            return False
        while (node := self.checkpoint()) is not None:
            # A locked one is offered again when it is unlocked.
            if not node.state_lock:
                self.offer(node)
                return self._clock + GUESS * tokens > node.priority
        return False

    def bare(self) -> Node | None:
        """The least recently used node without a checkpoint, out of the heap; None if there is none."""
        return self._bare.pop()

    def checkpoint(self) -> Node | None:
        """The node with the least valuable checkpoint, out of the heap; None if there is none."""
        while (node := self._checkpoints.pop()) is not None:
            current = self._current(node)
            if current > node.priority:
                # The checkpoint above it is gone since: losing this one too costs more than was thought.
                node.priority = current
                self.offer(node)
                continue
            return node
        return None

    def evicted(self, node: Node) -> None:
        """`node` was the victim: the clock rises to its priority."""
        if self._ghosts is not None:
            self.inherit(node.above(), node.ghost)
            return
        if self.policy == "RecomputeCost":
            self._clock = max(self._clock, node.priority)


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
