"""Which checkpoint or leaf goes first: least recently used, or recency against recompute cost.

RecomputeCost is GreedyDual-Size-Frequency (Cherkasova, 1998; GreedyDual-Size: Cao and Irani, 1997): priority
is the clock at the last use plus the cost, times one more than the hits so far, and the clock rises to the
priority of whatever is evicted. The cost of a checkpoint is the tokens to recompute from the nearest
shallower one; FLOPs per token and bytes per state are the same for all of a model, so they only scale it.
Called by the tree and the state cache.
"""

import heapq
import itertools
from typing import Literal

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
        weight = GUESS if node.guess and not node.hits else 1 + node.hits
        return node.used_at + (node.depth - node.checkpoint_above()) * weight

    def offer(self, node: Node) -> None:
        """`node` may be a victim (again)."""
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
