"""A node of the radix tree: a run of pages with, optionally, one checkpoint at its end."""

from typing import Optional, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Pages = npt.NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, np.int32)


class NodeHeap(Protocol):
    """Heap that may hold a node, as far as the node knows it."""

    def remove(self, node: "Node") -> None:
        """Take out `node`, which is in the heap."""


class ReturnForecast(Protocol):
    """Statistics of returns to one checkpoint, as far as its node knows them."""

    node: Optional["Node"]
    """Node whose checkpoint they are of; None while it has none."""

    @property
    def rate(self) -> float:
        """Returns to be expected per request of keeping the checkpoint."""

    def adopt_returns(self, other: "ReturnForecast") -> bool:
        """Count the returns to `other`, a deeper place that is cached no longer, for this checkpoint too;
        return whether that adds to its rate."""

    def drop_returns(self) -> None:
        """Count returns to this checkpoint alone."""


class Node:
    """`token_ids` and `pages` of the edge from the parent; `slot` != 0 is a checkpoint of depth `depth`."""

    __slots__ = (
        "chain",
        "children",
        "depth",
        "epoch",
        "ghost",
        "kv_lock",
        "pages",
        "parent",
        "priority",
        "produced_step",
        "rungs",
        "salt",
        "slot",
        "state_lock",
        "token_ids",
        "used_at",
        "victim_at",
        "victims",
    )

    def __init__(self, parent: Optional["Node"], token_ids: Tokens, pages: Pages, salt: str) -> None:
        self.parent = parent
        self.token_ids = token_ids
        """Those of the edge, int32[pages * page size]; nobody else writes them."""
        self.pages = pages
        self.depth: int = (parent.depth if parent else 0) + len(token_ids)
        self.children: dict[bytes, Node] = {}
        self.chain: int | None = None
        """The running sum of its prefix's page chain, once somebody needed it."""
        self.rungs: bytes | None = None
        """The hashes of the prefixes that end with its rungs, once somebody needed them."""
        self.slot = 0
        self.produced_step = 0
        """The step that wrote the checkpoint: only later ones can match it (O7)."""
        self.epoch = 0
        """Flushes before it came: nothing is resumed of what came before the last one."""
        self.kv_lock = 0
        self.state_lock = 0
        self.ghost: ReturnForecast | None = None
        """What is known of returns to the checkpoint that is here now."""
        self.used_at = 0.0
        """The eviction clock when it was made or hit last."""
        self.priority = 0.0
        self.victims: NodeHeap | None = None
        """Eviction heap that holds this node; None while it cannot be evicted."""
        self.victim_at = 0
        """Its place there."""
        self.salt = salt

    def shared_pages(self, token_ids: Tokens) -> int:
        """How many of this node's pages a text begins with that goes on with `token_ids` after the parent."""
        return common_pages(self.token_ids, token_ids, len(self.token_ids) // len(self.pages))

    def path(self) -> list["Node"]:
        """From just below the root down to this node."""
        out: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            out.append(node)
            node = node.parent
        out.reverse()
        return out

    def above(self) -> Optional["Node"]:
        """The node of the nearest shallower checkpoint."""
        node = self.parent
        while node is not None and not node.slot:
            node = node.parent
        return node

    def stake(self) -> tuple[int, int]:
        """What goes with its checkpoint: tokens from the nearest shallower one, and pages no other one needs.

        In one walk: each request has tens of checkpoints weighed anew.
        """
        alone = not self.children
        pages, node = len(self.pages) if alone else 0, self.parent
        while node is not None and not node.slot:
            alone = alone and len(node.children) == 1
            if alone:
                pages += len(node.pages)
            node = node.parent
        return self.depth - (node.depth if node is not None else 0), pages


def common_pages(left: Tokens, right: Tokens, page_size: int) -> int:
    """How many whole pages the two token runs share from their start."""
    size = min(len(left), len(right))
    if not size:
        return 0
    differs = left[:size] != right[:size]
    first = int(differs.argmax())
    return (first if differs[first] else size) // page_size
