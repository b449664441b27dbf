"""The radix tree: page-granular prefixes with optional checkpoints at the ends of nodes.

It owns the pages and slots that sequences donated; sequences get them by match and lock, and eviction gives
them back to the arena. One root per cache salt; the fingerprint of weights, tokenizer, dtype and layout
belongs to the whole tree. Called by the state cache alone. A call that breaks an invariant raises
LedgerViolation.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.node import (
    NO_TOKENS,
    SHOWN_TOKENS,
    UNTRUSTED,
    NearestPrefix,
    Node,
    Pages,
    Pin,
    PrefixListener,
    ReturnForecast,
    Tokens,
    common_pages,
    most_in_common,
)


@dataclass(frozen=True, slots=True)
class Match:
    """The part of one prompt that the tree has in memory, and how much of it a sequence can resume."""

    kv_depth: int
    """Tokens whose pages are in the tree."""
    state_depth: int
    """Depth of the deepest checkpoint on the path, complete or not."""
    resumable: int
    """Depth to resume at: the depth of a complete checkpoint with all its pages, at most len - 1."""
    node: Node | None
    """Node of the checkpoint at `resumable`; None = nothing can be resumed."""
    pages: Pages
    """Pages of [0, resumable)."""
    cause: str
    """Reason why no more was resumable, one of `MISS_CAUSES`; empty if nothing was lost."""

    @property
    def evicted(self) -> bool:
        """Whether the checkpoint to resume from has been evicted since."""
        return self.node is not None and not self.node.slot

    def without(self, cause: str) -> "Match":
        """Return this match with nothing to resume, because of `cause`.

        If there was nothing to resume before, the earlier cause stays.
        """
        return Match(
            self.kv_depth, self.state_depth, 0, None, self.pages[:0], cause if self.resumable else self.cause
        )

    def pages_in_use(self, page_size: int) -> int:
        """Return how many pages of the match running sequences use already, of `page_size` tokens each."""
        node = self.node
        while node is not None and not node.kv_lock:
            node = node.parent
        return node.depth // page_size if node is not None else 0


_Path = list[tuple[Node, int]]
"""Nodes from below the root down to where a prompt diverges, each with the number of pages shared."""


class _PathCheckpoints(NamedTuple):
    """Says where a prompt can resume by the checkpoints on its path, or why it cannot."""

    best: Node | None
    """Node of the deepest checkpoint that can be resumed."""
    deepest: int
    """Depth of the deepest checkpoint within the prompt, complete or not; 0 = none."""
    in_flight: bool
    """Whether a checkpoint is still being written."""
    too_deep: bool
    """Whether a checkpoint lies behind the point at which the prompt diverges or ends."""


MISS_CAUSES = (
    "new",
    "no_state",
    "too_deep",
    "evicted",
    "in_flight",
    "salt_differs",
    "no_memory",
    "prompt_logprobs",
)
"""Causes of a miss.

`new`: these tokens were never seen; `no_memory`: resuming would have starved the sequence itself;
`prompt_logprobs`: they were requested, so the whole prompt is computed. The others lose tokens that were
seen. `no_state`: there is no checkpoint; `too_deep`: it lies behind the end of what both prompts share;
`evicted`: also flushed or withdrawn; `in_flight`: still computed; `salt_differs`: only another salt has it.
"""


def _no_pins(pages: Pages, change: int) -> None:
    """Do nothing: what a tree without an arena calls when pages become used or unused."""


class RadixTree:
    """Holds all cached prefixes of one model, with its pages and checkpoints, by their tokens.

    `page_size` is the number of tokens of a page.
    """

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
        """Number of flushes so far."""
        self.forgotten = 0
        """Number of checkpoints of earlier epochs: none of them is resumed, and they are still to be
        dropped."""
        self.listener: PrefixListener | None = None
        self.pins: dict[int, Pin] = {}
        """Pins on checkpoints, by number."""
        self.on_pin: Callable[[Pages, int], None] = _no_pins
        """Called with +1 when pages become used and with -1 when they are released: eviction skips used
        pages."""
        self._evicted: dict[int, None] = {}
        self._first_pages: Counter[bytes] = Counter()
        """Number of salts that have a prompt beginning with a page, by the tokens of the page."""

    # --- match ---------------------------------------------------------------------------------------

    def match(self, token_ids: Tokens, salt: str, step: int) -> Match:
        """Return how much of `token_ids` the forward of `step` can resume, and why not more; read only."""
        limit = len(token_ids) - 1
        path, kv_depth = self._longest_path(token_ids, salt)
        checkpoints = self._path_checkpoints(path, limit, step)
        resumable = checkpoints.best.depth if checkpoints.best is not None else 0
        pages = [node.pages for node, _ in path if node.depth <= resumable]
        return Match(
            kv_depth,
            checkpoints.deepest,
            resumable,
            checkpoints.best,
            np.concatenate(pages) if pages else np.empty(0, np.int32),
            self._miss_cause(token_ids, path, kv_depth, checkpoints),
        )

    def _longest_path(self, token_ids: Tokens, salt: str) -> tuple[_Path, int]:
        """Return the path of `token_ids` from the root, and the tokens whose pages it has."""
        node, depth, path = self.roots.get(salt), 0, []
        while node is not None and depth < len(token_ids):
            child = node.children.get(self._key(token_ids[depth:]))
            if child is None:
                break
            shared = child.shared_pages(token_ids[depth:])
            path.append((child, shared))
            depth += shared * self.page_size
            if shared < len(child.pages):
                break
            node = child
        return path, depth

    def _path_checkpoints(self, path: _Path, limit: int, step: int) -> _PathCheckpoints:
        """Return what the checkpoints of `path` within `limit` tokens allow the forward of `step`."""
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
        return _PathCheckpoints(best, deepest, in_flight, too_deep)

    def _miss_cause(
        self, token_ids: Tokens, path: _Path, kv_depth: int, checkpoints: _PathCheckpoints
    ) -> str:
        """Return why no more of `token_ids` is resumable, one of `MISS_CAUSES`; empty if nothing was lost."""
        page_size = self.page_size
        resumable = checkpoints.best.depth if checkpoints.best is not None else 0
        last_page = (len(token_ids) - 1) // page_size * page_size
        if resumable < min(kv_depth, last_page):
            return self._loss_cause(path, resumable, checkpoints)
        if not kv_depth and len(token_ids) > page_size:
            # The salt of an earlier prompt differs, or a page would be shared.
            return "salt_differs" if self._first_pages[self._key(token_ids)] else "new"
        return "new" if resumable < last_page else ""

    def _loss_cause(self, path: _Path, resumable: int, checkpoints: _PathCheckpoints) -> str:
        """Return why pages of `path` beyond `resumable` tokens cannot be resumed, one of `MISS_CAUSES`."""
        if checkpoints.in_flight and checkpoints.deepest > resumable:
            return "in_flight"
        lost = [node for node, _ in path if id(node) in self._evicted or node.epoch != self.epoch]
        if any(node.depth > resumable for node in lost):
            return "evicted"
        return "too_deep" if checkpoints.too_deep else "no_state"

    def nearest(self, token_ids: Tokens, salt: str, client: str) -> NearestPrefix:
        """Return the cached prompt of `salt` that has the most tokens in common with `token_ids`; read only.

        Only the text of `client` is compared token by token: a client that guesses another one's text learns
        no more of it than whole pages, as by the tokens that it resumes.
        """
        path, depth = self._longest_path(token_ids, salt)
        node, shared = path[-1] if path else (self.roots.get(salt), 0)
        loss = self._deepest_loss(path)
        rest = token_ids[depth:]
        if node is None or (shared == len(node.pages) and not node.children):
            return NearestPrefix(depth, NO_TOKENS, hidden=False, loss=loss)
        if shared < len(node.pages):
            child, begin = (node if node.is_shown_to(client) else None), shared * self.page_size
        else:
            own = {key: each for key, each in node.children.items() if each.is_shown_to(client)}
            child, begin = most_in_common(own, rest), 0
        if child is None:
            return NearestPrefix(depth, NO_TOKENS, hidden=True, loss=loss)
        begin += (common := common_pages(child.token_ids[begin:], rest, 1))
        pieces, size = [child.token_ids[begin : begin + SHOWN_TOKENS]], len(child.token_ids) - begin
        while size < SHOWN_TOKENS:
            own = {key: each for key, each in child.children.items() if each.is_shown_to(client)}
            if not own:
                break
            child = max(own.values(), key=lambda each: each.used_at)
            pieces.append(child.token_ids)
            size += len(child.token_ids)
        return NearestPrefix(depth + common, np.concatenate(pieces)[:SHOWN_TOKENS], hidden=False, loss=loss)

    def _deepest_loss(self, path: _Path) -> str:
        """Return how the deepest lost checkpoint of `path` was lost; "" = none was."""
        for node, _ in reversed(path):
            if node.epoch == UNTRUSTED:
                return "quarantined"
            if node.epoch != self.epoch:
                return "flushed"
            if id(node) in self._evicted:
                return "evicted"
        return ""

    def complete_checkpoints(self, token_ids: Tokens, salt: str, step: int) -> list[Node]:
        """Return the checkpoints of prefixes of `token_ids` that `step` could resume from, deepest first."""
        path, _ = self._longest_path(token_ids, salt)
        return [
            node
            for node, shared in reversed(path)
            if node.slot
            and node.epoch == self.epoch
            and shared == len(node.pages)
            and node.produced_step < step
        ]

    # --- locks ---------------------------------------------------------------------------------------

    def lock_pages(self, token_ids: Tokens, salt: str) -> tuple[Node | None, int]:
        """Lock the pages that the tree has of `token_ids`; return their last node and number of tokens.

        The node may reach beyond these tokens until `cut` has split it; it is None if the tree has none of
        the pages.
        """
        path, depth = self._longest_path(token_ids, salt)
        node = path[-1][0] if path else None
        if node is not None:
            self.lock(node, state=False)
        return node, depth

    def cut(self, node: Node, depth: int) -> Node:
        """Return the node that ends at `depth` on the path to `node`; move the caller's page lock to it."""
        parent = node.parent
        assert parent is not None
        if node.depth == depth:
            return node
        upper = self._split(node, (depth - parent.depth) // self.page_size)
        self.lock(upper, state=False)
        self.unlock(node)
        return upper

    def lock(self, node: Node, *, state: bool) -> None:
        """Lock the pages of all nodes from the root to `node`, and its checkpoint if `state` is set.

        Locks are counted, and what is locked is not evicted. Rule W4 of the ledger: no node has more locks of
        its checkpoint than of its pages.
        """
        ancestor: Node | None = node
        while ancestor is not None:
            if not ancestor.kv_lock:
                self.locked_pages += len(ancestor.pages)
                self.on_pin(ancestor.pages, 1)
            ancestor.kv_lock += 1
            ancestor = ancestor.parent
        if state:
            if not node.state_lock:
                self.locked_states += 1
            node.state_lock += 1

    def unlock(self, node: Node) -> None:
        """Release one lock of the pages of all nodes from the root to `node`.

        Nodes that then have no lock may be evicted.
        """
        current: Node | None = node
        while current is not None:
            if current.kv_lock <= current.state_lock:
                raise LedgerViolation(f"W4: page lock at depth {current.depth} released once too often")
            current.kv_lock -= 1
            parent = current.parent
            if not current.kv_lock:
                self.locked_pages -= len(current.pages)
                self.on_pin(current.pages, -1)
                if parent is not None:
                    self.eviction.offer(current)
                elif not current.children:
                    self.roots.pop(current.salt, None)
            current = parent

    def unlock_state(self, node: Node) -> None:
        """Release one lock of the checkpoint of `node`; without a lock, it may be evicted."""
        if node.state_lock < 1:
            raise LedgerViolation(f"W4: state lock of node at depth {node.depth} released once too often")
        node.state_lock -= 1
        if not node.state_lock:
            self.locked_states -= 1
            self.eviction.offer(node)

    def touch(self, node: Node) -> None:
        """Record that a sequence resumed from the checkpoint of `node`: no other one counts as used."""
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
        client: str | None = None,
    ) -> tuple[Node, int, bool]:
        """Give the pages (and the checkpoint) of `token_ids`, which `client` brought, to the tree.

        Return (node that ends at len(token_ids), tokens whose pages the tree already had, whether it took the
        slot). The caller keeps the pages of those first tokens and a slot that was not taken: each has one
        owner (W2). `ghost`: statistics of returns to the checkpoint.
        """
        if (
            len(token_ids) % self.page_size
            or len(token_ids) != len(pages) * self.page_size
            or not len(token_ids)
        ):
            raise LedgerViolation(f"P5: a node of {len(token_ids)} tokens on pages of {self.page_size}")
        node, present = self._insert_pages(token_ids, pages, salt, client)
        return node, present, bool(slot) and self._insert_checkpoint(node, slot, step, ghost)

    def _insert_pages(
        self, token_ids: Tokens, pages: Pages, salt: str, client: str | None
    ) -> tuple[Node, int]:
        """Return the node that ends with `token_ids`, and the tokens whose pages the tree already had."""
        node = self.roots.setdefault(salt, Node(None, token_ids[:0], pages[:0], salt))
        depth = 0
        while depth < len(token_ids):
            child = node.children.get(self._key(token_ids[depth:]))
            if child is None:
                child = self._add_child(node, token_ids[depth:], pages[depth // self.page_size :])
                child.client = client
                return child, depth
            shared = child.shared_pages(token_ids[depth:])
            if shared < len(child.pages):
                child = self._split(child, shared)
            depth += shared * self.page_size
            node = child
        return node, depth

    def _add_child(self, parent: Node, token_ids: Tokens, pages: Pages) -> Node:
        child = Node(parent, token_ids.copy(), pages.copy(), parent.salt)
        child.epoch = self.epoch
        key = self._key(child.token_ids)
        parent.children[key] = child
        if parent.parent is None:
            self._first_pages[key] += 1
        self.nodes += 1
        self.pages += len(child.pages)
        self.eviction.touch(child)
        if self.listener is not None:
            self.listener.pages_gained(child)
        return child

    def _insert_checkpoint(self, node: Node, slot: int, step: int, ghost: ReturnForecast | None) -> bool:
        """Return whether `node` took the checkpoint in `slot`; a node that has one already revives it."""
        if node.slot and node.epoch == UNTRUSTED:
            return False
        if node.epoch != self.epoch and self.listener is not None:
            self.listener.pages_gained(node)
        if node.slot:
            if node.epoch != self.epoch:
                # The same tokens were computed again, so the forgotten checkpoint is valid again.
                node.epoch = self.epoch
                self.forgotten -= 1
                if self.listener is not None:
                    self.listener.gained(node)
            return False
        node.slot = slot
        node.produced_step = step
        node.epoch = self.epoch
        node.ghost = ghost
        if ghost is not None:
            ghost.node = node
        self.checkpoints += 1
        self._evicted.pop(id(node), None)
        self.eviction.touch(node)
        above = node.above()
        if above is not None:
            # Requests that return to depths below the checkpoint above resume from the new one.
            if above.ghost is not None:
                above.ghost.drop_returns()
            self.eviction.offer(above)
        if self.listener is not None:
            self.listener.gained(node)
        return True

    def _split(self, child: Node, keep: int) -> Node:
        """Cut `child` after `keep` pages, and return the new upper node, which is now the parent of `child`.

        The upper node has the same page locks and no checkpoint (invariant W3).
        """
        parent = child.parent
        assert parent is not None
        cut = keep * self.page_size
        # Copies, because a view would keep the memory of the whole run alive after its tail is evicted.
        upper = Node(parent, child.token_ids[:cut].copy(), child.pages[:keep].copy(), child.salt)
        parent.children[self._key(upper.token_ids)] = upper
        upper.kv_lock = child.kv_lock
        upper.priority = child.priority
        upper.used_at = child.used_at
        upper.epoch = child.epoch
        upper.client = child.client
        child.token_ids = child.token_ids[cut:].copy()
        child.pages = child.pages[keep:].copy()
        child.parent = upper
        child.rungs = None
        upper.children[self._key(child.token_ids)] = child
        self.nodes += 1
        return upper

    def _key(self, token_ids: Tokens) -> bytes:
        """Return the key of the child that continues with `token_ids`: their first page."""
        return token_ids[: self.page_size].tobytes()

    # --- evict ---------------------------------------------------------------------------------------

    def forget(self, spared: Sequence[Node]) -> int:
        """Forget all checkpoints except `spared`, which sequences are reading; return the number lost.

        None of them is resumed any more. They stay in the tree until a sweep or an eviction drops them, or
        until their last export ends.
        """
        kept = {id(node): node for node in spared if node.slot and node.epoch == self.epoch}
        lost = self.checkpoints - self.forgotten - len(kept)
        self.epoch += 1
        self.forgotten += lost
        for pin in list(self.pins.values()):
            if pin.node is not None and id(pin.node) not in kept:
                self.release_pin(pin)
        for node in kept.values():
            node.epoch = self.epoch
        if self.listener is not None:
            self.listener.flushed(iter(kept.values()))
        return lost

    def release_pin(self, pin: Pin) -> None:
        """End a pin, whoever holds it."""
        node, pin.node = pin.node, None
        assert node is not None
        node.pin = None
        del self.pins[pin.number]

    def distrust(self, node: Node) -> None:
        """Forget the checkpoint of `node`, which is wrong, although somebody still reads it."""
        if node.epoch == UNTRUSTED:
            return
        if node.epoch == self.epoch:
            self.forgotten += 1
            if self.listener is not None:
                self.listener.lost(node)
                self.listener.pages_lost(node)
        node.epoch = UNTRUSTED

    def drop_state(self, node: Node) -> int:
        """Take the checkpoint from `node`, which stays as a tombstone; return the slot."""
        if node.state_lock:
            raise LedgerViolation(f"W4: checkpoint at depth {node.depth} dropped while locked")
        if self.listener is not None and node.epoch == self.epoch:
            # A flush reports the checkpoints that it forgets itself.
            self.listener.lost(node)
        if node.pin is not None:
            self.release_pin(node.pin)
        slot, node.slot, node.lineage = node.slot, 0, None
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
        """Remove an unlocked leaf without a checkpoint; return its pages."""
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

    def nodes_from(self, token_ids: Tokens, salt: str) -> list[Node]:
        """Return the nodes that end at or behind `token_ids` and begin with them, parents first."""
        path, depth = self._longest_path(token_ids, salt)
        if depth < len(token_ids):
            return []
        nodes = [path[-1][0]]
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes

    def checkpoints_on_path(self, node: Node) -> list[Node]:
        """Return the nodes with a checkpoint from the root to `node`, shallowest first."""
        return [ancestor for ancestor in node.path() if ancestor.slot]

    # --- account -------------------------------------------------------------------------------------

    @property
    def evictable_slots(self) -> int:
        """Number of checkpoints that are not locked."""
        return self.checkpoints - self.locked_states

    @property
    def evictable_pages(self) -> int:
        """Number of pages that are not locked."""
        return self.pages - self.locked_pages

    def walk(self) -> Iterator[Node]:
        """Yield every node except the roots."""
        levels = [iter(self.roots.values())]
        while levels:
            node = next(levels[-1], None)
            if node is None:
                levels.pop()
                continue
            if node.parent is not None:
                yield node
            if node.children:
                levels.append(iter(node.children.values()))

    @staticmethod
    def bare_below(node: Node) -> list[Node] | None:
        """Return the nodes under `node`, parents first; None if one has a checkpoint or is in use."""
        descendants = list(node.children.values())
        for descendant in descendants:
            if descendant.slot or descendant.kv_lock:
                return None
            descendants.extend(descendant.children.values())
        return descendants
