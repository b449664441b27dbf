"""Which checkpoint or leaf goes first: the least recently used, or what promises least for what it takes.

RecomputeCost weighs a checkpoint by the tokens that keeping it saves per request and slab: the rate at
which its class returns at its age (the ghost tree counts that), times the tokens from the nearest shallower
checkpoint, over the slabs of its state and of the pages that only it can resume. That is the slope of the
bound on what a cache of this size can save. Called by the tree, the reclaimer and the state cache.
"""

import math
from typing import get_args

from mamba_api import choices
from mamba_server.cache.eviction_heap import EvictionHeap
from mamba_server.cache.ghost_tree import GhostTree
from mamba_server.cache.node import Node, ReturnForecast

Policy = choices.Eviction
POLICIES: tuple[Policy, ...] = get_args(Policy)


class Eviction:
    """The nodes that may go, in the order in which they would; those that are locked are passed over."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._checkpoints = EvictionHeap()
        self._bare = EvictionHeap()
        self._clock = 0.0
        self._ghosts: GhostTree | None = None
        self._pages_per_slab = 0

    def use_forecast(self, ghosts: GhostTree | None, pages_per_slab: int) -> None:
        """Take the rates of return from `ghosts`. `pages_per_slab`: 0 where pages take no memory."""
        self._ghosts = ghosts
        self._pages_per_slab = pages_per_slab

    def change(self, policy: Policy) -> None:
        """Order those that may go by `policy` from now on."""
        self.policy = policy
        for node in list(self._checkpoints):
            self.offer(node)

    def touch(self, node: Node) -> None:
        """`node` was made or resumed from just now."""
        self._clock += 1.0
        node.used_at = self._clock
        node.priority = self.weigh(node)
        self.offer(node)

    def weigh(self, node: Node) -> float:
        """What `node` is worth just now: the least goes first."""
        if not node.slot or self.policy == "LRU":
            return node.used_at
        tokens, pages = node.stake()
        if node.ghost is not None:
            return self.worth(node.ghost.rate, tokens, pages)
        # Of what the ghost tree has forgotten nothing is known but that it is old.
        return self.worth(self._ghosts.unknown if self._ghosts is not None else 1.0, tokens, pages)

    def worth(self, rate: float, tokens: int, pages: int) -> float:
        """Tokens saved per request and slab: a checkpoint that returns at `rate`, with `pages` of its own."""
        slabs = 1 + pages / self._pages_per_slab if self._pages_per_slab else 1.0
        return rate * tokens / slabs

    def inherit(self, node: Node | None, ghost: ReturnForecast | None) -> None:
        """There is no checkpoint at `ghost`: who comes back to it resumes at `node`, the nearest above."""
        if node is None or node.ghost is None or ghost is None:
            return
        if node.ghost.adopt_returns(ghost):
            self.offer(node)

    def lowest_worth(self) -> float:
        """The worth of the next victim; infinite if there is none."""
        while (node := self.pop_checkpoint()) is not None:
            # A locked one is offered again when it is unlocked.
            if not node.state_lock:
                self.offer(node)
                return node.priority
        return math.inf

    def offer(self, node: Node) -> None:
        """`node` may be a victim (again)."""
        node.priority = self.weigh(node)
        (self._checkpoints if node.slot else self._bare).put(node)

    def withdraw(self, node: Node) -> None:
        """`node` is no victim until it is offered again."""
        if node.victims is not None:
            node.victims.remove(node)

    def pop_bare_node(self) -> Node | None:
        """Take out the least recently used node without a checkpoint; None if there is none."""
        return self._bare.pop()

    def pop_checkpoint(self) -> Node | None:
        """Take out the node with the least valuable checkpoint; None if there is none."""
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
