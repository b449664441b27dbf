"""Node of the radix tree: a run of pages with, optionally, one checkpoint at its end.

Also the two interfaces through which others see a node: the listener of the tree, and the statistics of
returns.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, Optional, Protocol

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
Pages = npt.NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, np.int32)
SHOWN_TOKENS = 64
"""Most tokens of a cached prompt that an explanation shows."""
UNTRUSTED = -1
"""Epoch of a node whose checkpoint is wrong: it is never resumed, and no insertion makes it valid again."""


Origin = Literal["device", "tier", "peer", "hand_over", "session"]
"""Place at which a state was before this arena had it; `device` = it was computed here."""


class Provenance(NamedTuple):
    """Says where a state comes from: the kind of source, the request, and the engine or tier."""

    origin: Origin
    request_id: str = ""
    """Request that wrote the checkpoint, or for which it came; "" = none."""
    place: str = ""
    """Address and incarnation of the engine that sent it, or the name of the tier; "" = this engine."""


RECEIVED = Provenance("peer")
"""Provenance of a state that came from outside, and of which nobody said more."""


class Lineage:
    """History of one checkpoint: where it comes from, and who has resumed it.

    `parent` is the lineage of the checkpoint from which its writer resumed; None = it resumed from none.
    """

    __slots__ = ("depth", "parent", "provenance", "resumed", "step")

    def __init__(
        self, provenance: Provenance, depth: int, step: int, parent: Optional["Lineage"] = None
    ) -> None:
        self.provenance = provenance
        self.depth = depth
        self.step = step
        """Step that wrote the checkpoint."""
        self.parent = parent
        self.resumed = 0
        """Number of sequences that have resumed from the checkpoint."""

    def chain(self) -> Iterator["Lineage"]:
        """Yield this lineage and its ancestors, the deepest first."""
        lineage: Lineage | None = self
        while lineage is not None:
            yield lineage
            lineage = lineage.parent


class NodeHeap(Protocol):
    """Heap of nodes in the order of eviction, as far as a node needs it: to be removed from it."""

    def remove(self, node: "Node") -> None:
        """Remove `node`, which is in the heap."""


class ReturnForecast(Protocol):
    """Predicts how often prompts return to one checkpoint, as far as its node needs it."""

    node: Optional["Node"]
    """Node that holds the checkpoint; None while there is none."""

    @property
    def rate(self) -> float:
        """Expected returns per request for which the checkpoint is kept."""

    def adopt_returns(self, other: "ReturnForecast") -> bool:
        """Count the returns to `other`, a greater depth without a checkpoint, for this checkpoint too.

        Return whether that adds to the rate.
        """

    def drop_returns(self) -> None:
        """Stop counting the returns to other depths."""


class Pin:
    """Keeps one checkpoint from eviction, while anybody holds the pin and other victims are left."""

    __slots__ = ("depth", "holders", "node", "number", "pages")

    def __init__(self, number: int, node: "Node", pages: int) -> None:
        self.number = number
        """Number of the pin, unique within a cache: the lowest gives way first."""
        self.node: Node | None = node
        """Node with the checkpoint; None = the checkpoint is gone."""
        self.depth = node.depth
        self.pages = pages
        """Pages that no shallower pin on the path holds."""
        self.holders = 1


class Node:
    """Node of the radix tree: the tokens and pages between its parent and itself, and maybe a checkpoint.

    `slot` != 0 says that the state after `depth` tokens is in that slot.
    """

    __slots__ = (
        "chain",
        "children",
        "client",
        "depth",
        "epoch",
        "ghost",
        "kv_lock",
        "lineage",
        "pages",
        "parent",
        "pin",
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
        """Tokens of the edge, int32[pages * page size]; nobody else writes this array."""
        self.pages = pages
        self.depth: int = (parent.depth if parent else 0) + len(token_ids)
        self.children: dict[bytes, Node] = {}
        self.client: str | None = None
        """Client whose request brought the tokens of the edge first; None = it came from outside."""
        self.chain: int | None = None
        """Running sum of the page chain (`mamba_prefix.page_chain`) up to the end; None = not computed."""
        self.rungs: bytes | None = None
        """Hashes of the prefixes that end with the rungs of this node, once computed."""
        self.slot = 0
        self.produced_step = 0
        """Step that wrote the checkpoint: only later steps can match it (O7)."""
        self.epoch = 0
        """Number of flushes before the node was added: nothing older than the last flush is resumed."""
        self.kv_lock = 0
        self.state_lock = 0
        self.ghost: ReturnForecast | None = None
        """Statistics of the returns to the checkpoint of this node."""
        self.lineage: Lineage | None = None
        """Lineage of the checkpoint; None = there is no checkpoint, or nobody recorded it."""
        self.pin: Pin | None = None
        """Pin on the checkpoint; None = nobody holds it."""
        self.used_at = 0.0
        """Time on the eviction clock at which the node was added or last used."""
        self.priority = 0.0
        self.victims: NodeHeap | None = None
        """Eviction heap that holds this node; None while it cannot be evicted."""
        self.victim_at = 0
        """Index of this node in `victims`."""
        self.salt = salt

    def shared_pages(self, token_ids: Tokens) -> int:
        """Return how many of this node's pages `token_ids` begins with; it continues the parent's text."""
        return common_pages(self.token_ids, token_ids, len(self.token_ids) // len(self.pages))

    def path(self) -> list["Node"]:
        """Return the nodes from just below the root down to this one."""
        out: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            out.append(node)
            node = node.parent
        out.reverse()
        return out

    def is_shown_to(self, client: str) -> bool:
        """Return whether `client` may read the tokens of the edge: only text that it brought itself.

        "" = clients have no names, and share all text. A client with a name is shown no text that came from
        outside.
        """
        return (self.client or "") == client

    def above(self) -> Optional["Node"]:
        """Return the node of the nearest checkpoint between the root and this node; None = there is none."""
        node = self.parent
        while node is not None and not node.slot:
            node = node.parent
        return node

    def exclusive_span(self) -> tuple[int, int]:
        """Return the tokens since the checkpoint above, and the pages that only this checkpoint can resume.

        One walk counts both, because each request weighs tens of checkpoints.
        """
        exclusive = not self.children
        pages, node = len(self.pages) if exclusive else 0, self.parent
        while node is not None and not node.slot:
            exclusive = exclusive and len(node.children) == 1
            if exclusive:
                pages += len(node.pages)
            node = node.parent
        return self.depth - (node.depth if node is not None else 0), pages


def common_pages(left: Tokens, right: Tokens, page_size: int) -> int:
    """Return how many whole pages the two token runs share from their start."""
    size = min(len(left), len(right))
    if not size:
        return 0
    differs = left[:size] != right[:size]
    first = int(differs.argmax())
    return (first if differs[first] else size) // page_size


def most_in_common(children: Mapping[bytes, Node], rest: Tokens) -> Node | None:
    """Return the child whose first page has the most tokens in common with `rest`, the last used of several.

    None if there is no child. The keys are compared as bytes, since a node may have thousands of children.
    """
    raw, size = rest.tobytes(), rest.itemsize
    low, high = 0, len(rest)
    near = list(children)
    while low < high and near:
        middle = (low + high + 1) // 2
        nearer = [key for key in near if key.startswith(raw[: middle * size])]
        if nearer:
            low, near = middle, nearer
        else:
            high = middle - 1
    return max((children[key] for key in near), key=lambda node: node.used_at, default=None)


class NearestPrefix(NamedTuple):
    """The cached prompt most like another one, as far as a client may know it: it explains a miss."""

    depth: int
    """Tokens in common; whole pages only, where the next tokens are another client's."""
    continuation: Tokens
    """Next tokens of the cached prompt, at most `SHOWN_TOKENS`; empty = there are none, or hidden ones."""
    hidden: bool
    """Whether the next tokens of the cached prompt are another client's."""
    loss: str
    """How a checkpoint on the path was lost: `quarantined`, `flushed`, `evicted`, or "" = none was."""


class CachedPrefix(Protocol):
    """Prefix in the radix tree: the tokens of one edge, and the shorter prefix that they continue.

    The tree's one listener reads it, and writes only `chain` and `rungs`, where it keeps its own results.
    """

    token_ids: Tokens
    """Tokens of the edge alone."""
    depth: int
    """Tokens from the root to the end of the edge."""
    slot: int
    """Slot of the checkpoint at the end; 0 = there is none."""
    salt: str
    chain: int | None
    """Running sum of the page chain up to the end, once a listener has computed it."""
    rungs: bytes | None
    """Hashes of the prefixes that end at the edge's rungs, once a listener has computed them."""

    @property
    def parent(self) -> Optional["CachedPrefix"]:
        """Shorter prefix that this one continues; None for the root, which has no tokens."""


class PrefixListener(Protocol):
    """Observer of the radix tree. Each change is reported exactly once.

    The tree calls it in the middle of an admission or a commit, so a listener only records the change.
    """

    def gained(self, prefix: CachedPrefix) -> None:
        """Record that `prefix` now has a checkpoint."""

    def lost(self, prefix: CachedPrefix) -> None:
        """Record that `prefix` is about to lose its checkpoint."""

    def pages_gained(self, prefix: CachedPrefix) -> None:
        """Record that the pages of `prefix` can be used now."""

    def pages_lost(self, prefix: CachedPrefix) -> None:
        """Record that `prefix` is about to be removed, with its pages."""

    def flushed(self, kept: Iterable[CachedPrefix]) -> None:
        """Record that all prefixes were forgotten except `kept`."""
