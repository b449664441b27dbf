"""Eviction policy: the order in which checkpoints and leaves are evicted.

LRU evicts the least recently used first. RecomputeCost first evicts the checkpoint that saves the fewest
tokens per request and slab. The tokens saved per request are the expected returns to the checkpoint, as the
ghost tree predicts them, times the tokens since the nearest shallower checkpoint. The slabs are those of the
state and of the pages that only this checkpoint can resume. Called by the tree, the reclaimer and the state
cache.
"""

import itertools
import math
from collections.abc import Iterator
from typing import get_args

from mamba_api import choices
from mamba_server.cache.ghost_tree import GhostTree
from mamba_server.cache.node import Node, ReturnForecast

Policy = choices.Eviction
POLICIES: tuple[Policy, ...] = get_args(Policy)


PINNED = 1e15
"""Least worth of a pinned checkpoint, above the worth of every other checkpoint; the number of the pin is
added."""
_Entry = tuple[float, int, Node]
"""Priority, serial number of the insertion (so that no two entries compare equal), node."""


class EvictionHeap:
    """Binary heap of nodes by priority, then by insertion; `node.victim_at` is the index of a node.

    Each node is in it at most once and can be moved or removed. An outdated priority is corrected at once:
    entries left to be skipped later would pile up, and the eviction that meets the pile would delay all
    running answers.
    """

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Node]:
        """Yield all nodes, in no particular order."""
        return (entry[2] for entry in self._entries)

    def put(self, node: Node) -> None:
        """Insert `node`, or move it to the position of its present priority."""
        entry = (node.priority, next(self._order), node)
        if node.victims is self:
            self._place(node.victim_at, entry)
            return
        if node.victims is not None:
            node.victims.remove(node)
        node.victims = self
        self._entries.append(entry)
        self._rise(len(self._entries) - 1, entry)

    def pop(self) -> Node | None:
        """Remove and return the first node; None if the heap is empty."""
        if not self._entries:
            return None
        node = self._entries[0][2]
        self.remove(node)
        return node

    def remove(self, node: Node) -> None:
        """Remove `node`, which is in the heap."""
        node.victims = None
        last = self._entries.pop()
        if last[2] is not node:
            self._place(node.victim_at, last)

    def _place(self, index: int, entry: _Entry) -> None:
        """Put `entry` at the vacant `index`, and move it from there to where it belongs."""
        if index and entry < self._entries[(index - 1) >> 1]:
            self._rise(index, entry)
        else:
            self._sink(index, entry)

    def _rise(self, index: int, entry: _Entry) -> None:
        entries = self._entries
        while index:
            parent = (index - 1) >> 1
            other = entries[parent]
            if other < entry:
                break
            entries[index] = other
            other[2].victim_at = index
            index = parent
        entries[index] = entry
        entry[2].victim_at = index

    def _sink(self, index: int, entry: _Entry) -> None:
        entries = self._entries
        size = len(entries)
        child = 2 * index + 1
        while child < size:
            other = entries[child]
            if child + 1 < size and entries[child + 1] < other:
                child += 1
                other = entries[child]
            if entry < other:
                break
            entries[index] = other
            other[2].victim_at = index
            index = child
            child = 2 * index + 1
        entries[index] = entry
        entry[2].victim_at = index


class Eviction:
    """Keeps the nodes that may be evicted in the order of their worth, and hands out the next victim."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._checkpoints = EvictionHeap()
        self._bare = EvictionHeap()
        self._clock = 0.0
        self._ghosts: GhostTree | None = None
        self._pages_per_slab = 0

    def use_forecast(self, ghosts: GhostTree | None, pages_per_slab: int) -> None:
        """Predict returns with `ghosts` from now on; None = predict nothing.

        `pages_per_slab` is 0 where pages take no memory.
        """
        self._ghosts = ghosts
        self._pages_per_slab = pages_per_slab

    def change(self, policy: Policy) -> None:
        """Order the nodes by `policy` from now on."""
        self.policy = policy
        for node in list(self._checkpoints):
            self.offer(node)

    def touch(self, node: Node) -> None:
        """Record that `node` was added or resumed from just now."""
        self._clock += 1.0
        node.used_at = self._clock
        self.offer(node)

    def rank(self, node: Node) -> float:
        """Return the priority of `node` as a victim; the lowest is evicted first.

        This is the worth of the node, or `PINNED` plus the number of its pin.
        """
        return self.weigh(node) if node.pin is None else PINNED + node.pin.number

    def weigh(self, node: Node) -> float:
        """Return the present worth of `node`, regardless of pins.

        Under LRU, and of a node without a checkpoint, it is the time of the last use.
        """
        if not node.slot or self.policy == "LRU":
            return node.used_at
        tokens, pages = node.exclusive_span()
        if node.ghost is not None:
            return self.worth(node.ghost.rate, tokens, pages)
        # The ghost tree has forgotten the checkpoint, so all that is known is that it is old.
        return self.worth(self._ghosts.unknown if self._ghosts is not None else 1.0, tokens, pages)

    def worth(self, rate: float, tokens: int, pages: int) -> float:
        """Return the tokens per request and slab that a checkpoint saves.

        `rate` is the number of returns per request, `tokens` the number of tokens that are recomputed without
        the checkpoint, and `pages` the number of pages that only this checkpoint can resume.
        """
        slabs = 1 + pages / self._pages_per_slab if self._pages_per_slab else 1.0
        return rate * tokens / slabs

    def transfer_returns(self, node: Node | None, ghost: ReturnForecast | None) -> None:
        """Count the expected returns to `ghost`, which has no checkpoint, for `node` as well.

        `node` is the nearest checkpoint above it, from which such returns resume.
        """
        if node is None or node.ghost is None or ghost is None:
            return
        if node.ghost.adopt_returns(ghost):
            self.offer(node)

    @property
    def only_pins(self) -> bool:
        """Whether every checkpoint that could be evicted is pinned."""
        return self.lowest_worth() >= PINNED

    def lowest_worth(self) -> float:
        """Return the worth of the next victim, `PINNED` or more for a pin; infinity if there is none."""
        while (node := self.pop_checkpoint()) is not None:
            # A locked node is offered again when it is unlocked.
            if not node.state_lock:
                self.offer(node)
                return node.priority
        return math.inf

    def offer(self, node: Node) -> None:
        """Put `node` among the possible victims, at the place of its present worth."""
        node.priority = self.rank(node)
        (self._checkpoints if node.slot else self._bare).put(node)

    def withdraw(self, node: Node) -> None:
        """Take `node` out of the possible victims, until it is offered again."""
        if node.victims is not None:
            node.victims.remove(node)

    def pop_bare_node(self) -> Node | None:
        """Remove and return the least recently used node without a checkpoint; None if there is none."""
        return self._bare.pop()

    def pop_checkpoint(self) -> Node | None:
        """Remove and return the node with the least valuable checkpoint; None if there is none."""
        while (node := self._checkpoints.pop()) is not None:
            current = self.rank(node)
            if current > node.priority:
                # The checkpoint above the node has been evicted since, so losing this one costs more than
                # before.
                self.offer(node)
                continue
            return node
        return None

    def evicted(self, node: Node) -> None:
        """Record that `node` is evicted: the checkpoint above it serves the requests that return to it."""
        self.transfer_returns(node.above(), node.ghost)
