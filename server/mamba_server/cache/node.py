"""A node of the radix tree: a run of pages with, optionally, one checkpoint at its end."""

from typing import TYPE_CHECKING, Optional

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from mamba_server.cache.ghosts import Ghost

Tokens = npt.NDArray[np.int32]
Pages = npt.NDArray[np.int32]


TOKEN_BYTES = 4
"""int32."""


class Node:
    """`tokens` and `pages` of the edge from the parent; `slot` != 0 is a checkpoint of depth `depth`."""

    __slots__ = (
        "children",
        "depth",
        "ghost",
        "kv_lock",
        "pages",
        "parent",
        "priority",
        "produced_step",
        "raw",
        "salt",
        "slot",
        "stamp",
        "state_lock",
        "used_at",
    )

    def __init__(self, parent: Optional["Node"], tokens: Tokens, pages: Pages, salt: str) -> None:
        self.parent = parent
        self.raw = tokens.tobytes()
        """The tokens as bytes: long prompts are compared at the speed of memory."""
        self.pages = pages
        self.depth: int = (parent.depth if parent else 0) + len(tokens)
        self.children: dict[bytes, Node] = {}
        self.slot = 0
        self.produced_step = 0
        """The step that wrote the checkpoint; it can be matched by later steps only (O7)."""
        self.kv_lock = 0
        self.state_lock = 0
        self.ghost: Ghost | None = None
        """What is known of returns to the checkpoint that is here now."""
        self.used_at = 0.0
        """The eviction clock when it was made or hit last."""
        self.priority = 0.0
        self.stamp = 0
        """Changes whenever an entry of the eviction heap for this node is out of date."""
        self.salt = salt

    @property
    def tokens(self) -> Tokens:
        """Those of the edge, int32[pages * page size]."""
        return np.frombuffer(self.raw, np.int32)

    def shared_pages(self, raw: bytes, at: int) -> int:
        """How many of this node's pages the text `raw` has at byte `at`."""
        if raw.startswith(self.raw, at):
            return len(self.pages)
        page_size = len(self.raw) // TOKEN_BYTES // len(self.pages)
        return common_pages(self.tokens, np.frombuffer(raw, np.int32, offset=at), page_size)

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

    def checkpoint_above(self) -> int:
        """Depth of the nearest shallower checkpoint; 0 if there is none."""
        node = self.above()
        return node.depth if node is not None else 0

    def own_pages(self) -> int:
        """Pages that go with its checkpoint: no other one needs them."""
        if self.children:
            return 0
        count, node = len(self.pages), self.parent
        while node is not None and node.parent is not None and not node.slot and len(node.children) == 1:
            count += len(node.pages)
            node = node.parent
        return count


def common_pages(left: Tokens, right: Tokens, page_size: int) -> int:
    """How many whole pages the two token runs share from their start."""
    size = min(len(left), len(right))
    differs = left[:size] != right[:size]
    same = int(differs.argmax()) if differs.any() else size
    return same // page_size
