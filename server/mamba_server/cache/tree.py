"""The radix tree: page-granular prefixes with optional checkpoints at node ends.

It owns the pages and slots that sequences donated; it hands them out by match and lock and gives them back by
eviction. One root per cache salt; the fingerprint of weights, tokenizer, dtype and layout is the tree's own.
Called by the state cache alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import Node, Pages, ReturnForecast, Tokens
from mamba_server.cache.prefix_listener import PrefixListener


@dataclass(frozen=True, slots=True)
class Match:
    """How much of a prompt the tree has. `node` carries the checkpoint of `resumable` (None: nothing)."""

    kv_depth: int
    """Tokens whose pages are here."""
    state_depth: int
    """Depth of the deepest checkpoint on the path, complete or not."""
    resumable: int
    """Depth to resume at: a complete checkpoint and all its pages, at most len - 1."""
    node: Node | None
    pages: Pages
    """Pages of [0, resumable)."""
    cause: str
    """Why not more was resumable; see `MISS_CAUSES`. Empty if nothing was lost."""

    @property
    def evicted(self) -> bool:
        """Whether the checkpoint to resume from has gone since."""
        return self.node is not None and not self.node.slot

    def without(self, cause: str) -> "Match":
        """Return this match with nothing to resume, because of `cause`."""
        return Match(
            self.kv_depth, self.state_depth, 0, None, self.pages[:0], cause if self.resumable else self.cause
        )

    def pages_in_use(self, page_size: int) -> int:
        """Return the pages to resume from that running sequences use anyway."""
        node = self.node
        while node is not None and not node.kv_lock:
            node = node.parent
        return node.depth // page_size if node is not None else 0


MISS_CAUSES = (
    "new",
    "no_state",
    "too_deep",
    "evicted",
    "in_flight",
    "off_grid",
    "salt_differs",
    "no_memory",
    "prompt_logprobs",
)
"""`new`: these tokens were never seen; `no_memory`: resuming would have starved the sequence itself;
`prompt_logprobs`: asked for, so the whole prompt is computed. The others are losses of something seen."""


def _no_pins(pages: Pages, change: int) -> None:
    """Where no arena asks for pins."""


class RadixTree:
    """Prefixes of one fingerprint. `page_size` tokens per page."""

    def __init__(self, page_size: int, eviction: Eviction, fingerprint: str = "") -> None:
        self.page_size = page_size
        self.fingerprint = fingerprint
        self.eviction = eviction
        self.roots: dict[str, Node] = {}
        self.nodes = 0
        self.checkpoints = 0
        self.pages = 0
        self.locked_pages = 0
        self.locked_states = 0
        self.epoch = 0
        """Flushes so far."""
        self.forgotten = 0
        """Checkpoints of earlier epochs: nobody resumes from them, and they are still to be dropped."""
        self.listener: PrefixListener | None = None
        self.on_pin: Callable[[Pages, int], None] = _no_pins
        """Told of pages that come into use (+1) and go out of it (-1): eviction spares them meanwhile."""
        self._evicted: dict[int, None] = {}
        self._first_pages: Counter[bytes] = Counter()
        """Under how many salts there are prompts that begin with a page."""

    # --- match ---------------------------------------------------------------------------------------

    def match(self, token_ids: Tokens, salt: str, step: int) -> Match:
        """The longest useful prefix of `token_ids` for a forward launched in `step`; changes nothing."""
        limit = len(token_ids) - 1
        root = self.roots.get(salt)
        node, at, path = root, 0, []
        while node is not None and at < len(token_ids):
            child = node.children.get(self._key(token_ids[at:]))
            if child is None:
                break
            shared = child.shared_pages(token_ids[at:])
            path.append((child, shared))
            at += shared * self.page_size
            if shared < len(child.pages):
                break
            node = child
        deepest, best = 0, None
        in_flight = too_deep = False
        for child, shared in path:
            if not child.slot or child.epoch != self.epoch:
                continue
            if shared < len(child.pages) or child.depth > limit:
                too_deep = True
                continue
            deepest = child.depth
            if child.produced_step >= step:
                in_flight = True
                continue
            best = child
        resumable = best.depth if best is not None else 0
        pages = [child.pages for child, _ in path if child.depth <= resumable]
        cause = ""
        reachable = min(at, limit // self.page_size * self.page_size)
        if resumable < reachable:
            cause = self._cause(path, resumable, deepest, in_flight=in_flight, too_deep=too_deep)
        elif not at and len(token_ids) > self.page_size:
            # Not under this salt, or something would have been shared.
            cause = "salt_differs" if self._first_pages[self._key(token_ids)] else "new"
        elif resumable < limit // self.page_size * self.page_size:
            cause = "new"
        elif resumable < limit and limit - resumable >= self.page_size:
            cause = "off_grid"
        return Match(
            at, deepest, resumable, best, np.concatenate(pages) if pages else np.empty(0, np.int32), cause
        )

    def _cause(
        self, path: list[tuple[Node, int]], resumable: int, deepest: int, *, in_flight: bool, too_deep: bool
    ) -> str:
        if in_flight and deepest > resumable:
            return "in_flight"
        gone = [child for child, _ in path if id(child) in self._evicted or child.epoch != self.epoch]
        if any(child.depth > resumable for child in gone):
            return "evicted"
        return "too_deep" if too_deep else "no_state"

    # --- locks ---------------------------------------------------------------------------------------

    def lock(self, node: Node, *, state: bool) -> None:
        """Pin the pages of the path to `node`, and its checkpoint if `state` (W4: 0 <= state <= kv locks)."""
        at: Node | None = node
        while at is not None:
            if not at.kv_lock:
                self.locked_pages += len(at.pages)
                self.on_pin(at.pages, 1)
            at.kv_lock += 1
            at = at.parent
        if state:
            if not node.state_lock:
                self.locked_states += 1
            node.state_lock += 1

    def unlock(self, node: Node) -> None:
        """Release the page lock of the path."""
        at: Node | None = node
        while at is not None:
            if at.kv_lock <= at.state_lock:
                raise LedgerViolation(f"W4: page lock of node at depth {at.depth} released once too often")
            at.kv_lock -= 1
            parent = at.parent
            if not at.kv_lock:
                self.locked_pages -= len(at.pages)
                self.on_pin(at.pages, -1)
                if parent is not None:
                    self.eviction.offer(at)
                elif not at.children:
                    self.roots.pop(at.salt, None)
            at = parent

    def unlock_state(self, node: Node) -> None:
        """Release the checkpoint lock of `node`."""
        if node.state_lock < 1:
            raise LedgerViolation(f"W4: state lock of node at depth {node.depth} released once too often")
        node.state_lock -= 1
        if not node.state_lock:
            self.locked_states -= 1
            self.eviction.offer(node)

    def touch(self, node: Node) -> None:
        """A hit refreshes only the checkpoint it used."""
        self.eviction.touch(node)

    # --- insert --------------------------------------------------------------------------------------

    def insert(
        self,
        token_ids: Tokens,
        pages: Pages,
        slot: int,
        step: int,
        salt: str,
        *,
        ghost: ReturnForecast | None = None,
    ) -> tuple[Node, int, bool]:
        """Give the pages (and the checkpoint) of `token_ids` to the tree.

        Returns (node that ends at len(token_ids), tokens whose pages the tree had already, slot taken?). The
        caller keeps the pages of those first tokens and, if not taken, the slot: one owner each (W2).
        `ghost`: what is known of returns to the checkpoint.
        """
        if (
            len(token_ids) % self.page_size
            or len(token_ids) != len(pages) * self.page_size
            or not len(token_ids)
        ):
            raise LedgerViolation(f"P5: a node of {len(token_ids)} tokens on pages of {self.page_size}")
        node = self.roots.setdefault(salt, Node(None, token_ids[:0], pages[:0], salt))
        at = 0
        while at < len(token_ids):
            child = node.children.get(self._key(token_ids[at:]))
            if child is None:
                child = Node(node, token_ids[at:].copy(), pages[at // self.page_size :].copy(), salt)
                child.epoch = self.epoch
                key = self._key(child.token_ids)
                node.children[key] = child
                if node.parent is None:
                    self._first_pages[key] += 1
                self.nodes += 1
                self.pages += len(child.pages)
                self.eviction.touch(child)
                if self.listener is not None:
                    self.listener.pages_gained(child)
                node = child
                break
            shared = child.shared_pages(token_ids[at:])
            if shared < len(child.pages):
                child = self._split(child, shared)
            at += shared * self.page_size
            node = child
        taken = False
        if slot and node.epoch != self.epoch and self.listener is not None:
            self.listener.pages_gained(node)
        if slot and not node.slot:
            node.slot = slot
            node.produced_step = step
            node.epoch = self.epoch
            node.ghost = ghost
            if ghost is not None:
                ghost.node = node
            self.checkpoints += 1
            self._evicted.pop(id(node), None)
            taken = True
            self.eviction.touch(node)
            above = node.above()
            if above is not None:
                # Who came back to what lay below it resumes from the new one.
                if above.ghost is not None:
                    above.ghost.drop_returns()
                self.eviction.offer(above)
            if self.listener is not None:
                self.listener.gained(node)
        elif slot and node.epoch != self.epoch:
            # The same tokens were computed anew, so what was forgotten holds again.
            node.epoch = self.epoch
            self.forgotten -= 1
            if self.listener is not None:
                self.listener.gained(node)
        return node, at, taken

    def _split(self, child: Node, keep: int) -> Node:
        """Cut `child` after `keep` pages; the new upper node has the same locks and no state (W3)."""
        parent = child.parent
        assert parent is not None
        cut = keep * self.page_size
        # Copies: what is left of an evicted tail would keep all of it.
        upper = Node(parent, child.token_ids[:cut].copy(), child.pages[:keep].copy(), child.salt)
        parent.children[self._key(upper.token_ids)] = upper
        upper.kv_lock = child.kv_lock
        upper.priority = child.priority
        upper.used_at = child.used_at
        upper.epoch = child.epoch
        child.token_ids = child.token_ids[cut:].copy()
        child.pages = child.pages[keep:].copy()
        child.parent = upper
        child.rungs = None
        upper.children[self._key(child.token_ids)] = child
        self.nodes += 1
        return upper

    def _key(self, token_ids: Tokens) -> bytes:
        """Under which a parent has the child that goes on with `token_ids`: their first page."""
        return token_ids[: self.page_size].tobytes()

    # --- evict ---------------------------------------------------------------------------------------

    def forget(self, spared: Sequence[Node]) -> int:
        """No checkpoint that is here is resumed any more, but for `spared`: all that are locked.

        Returns how many were lost. They stay the tree's, and evictable, until somebody drops them.
        """
        lost = self.evictable_slots - self.forgotten
        self.epoch += 1
        self.forgotten += lost
        for node in spared:
            node.epoch = self.epoch
        if self.listener is not None:
            self.listener.flushed(node for node in spared if node.slot)
        return lost

    def drop_state(self, node: Node) -> int:
        """Take the checkpoint from `node`; what is left is a tombstone. Returns the slot."""
        if node.state_lock:
            raise LedgerViolation(f"W4: checkpoint at depth {node.depth} dropped while locked")
        if self.listener is not None and node.epoch == self.epoch:
            # What a flush forgot was told with it.
            self.listener.lost(node)
        slot, node.slot = node.slot, 0
        self.forgotten -= node.epoch != self.epoch
        self.eviction.withdraw(node)
        if node.ghost is not None:
            node.ghost.node = None
            node.ghost.drop_returns()
            node.ghost = None
        self.checkpoints -= 1
        self._evicted[id(node)] = None
        if not node.kv_lock:
            self.eviction.offer(node)
        return slot

    def remove_leaf(self, node: Node) -> Pages:
        """Take an unlocked leaf without a checkpoint out of the tree. Returns its pages."""
        if node.children or node.kv_lock or node.slot or node.parent is None:
            raise LedgerViolation(f"W4: node at depth {node.depth} removed while it is in use")
        if self.listener is not None and node.epoch == self.epoch:
            self.listener.pages_lost(node)
        parent = node.parent
        key = self._key(node.token_ids)
        del parent.children[key]
        self._evicted.pop(id(node), None)
        self.eviction.withdraw(node)
        node.parent = None
        self.nodes -= 1
        self.pages -= len(node.pages)
        if parent.parent is None:
            self._first_pages[key] -= 1
            if not self._first_pages[key]:
                del self._first_pages[key]
            if not parent.children and not parent.kv_lock:
                self.roots.pop(parent.salt, None)
        elif not parent.kv_lock:
            self.eviction.offer(parent)
        return node.pages

    def checkpoints_on_path(self, node: Node) -> list[Node]:
        """Nodes with a checkpoint from the root to `node`, shallow first."""
        return [each for each in node.path() if each.slot]

    # --- account -------------------------------------------------------------------------------------

    @property
    def evictable_slots(self) -> int:
        """Checkpoints nobody reads just now."""
        return self.checkpoints - self.locked_states

    @property
    def evictable_pages(self) -> int:
        """Pages no running sequence uses."""
        return self.pages - self.locked_pages

    def walk(self) -> Iterator[Node]:
        """Every node but the roots."""
        below = [iter(self.roots.values())]
        while below:
            node = next(below[-1], None)
            if node is None:
                below.pop()
                continue
            if node.parent is not None:
                yield node
            if node.children:
                below.append(iter(node.children.values()))

    @staticmethod
    def bare_below(node: Node) -> list[Node] | None:
        """The nodes under `node`, each after its parent; None if one has a checkpoint or is in use."""
        out = list(node.children.values())
        for each in out:
            if each.slot or each.kv_lock:
                return None
            out.extend(each.children.values())
        return out
