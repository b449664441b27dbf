"""The ghost tree: a bounded record of recent prompts, as page hashes, whether or not they are still cached.

It finds where a new prompt diverges from all earlier ones, and counts how often each possible checkpoint (the
end of a prompt or answer, a branch, a multiple of the track interval: a grid point) is used again: eviction
and placement predict returns from these counts. A request uses one checkpoint, the deepest that its prompt
begins with. Called by the state cache; pure. It never holds pages or slots.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from enum import IntEnum
from hashlib import blake2b

import numpy as np

from mamba_prefix.page_chain import PageMixer
from mamba_server.cache.node import Node, ReturnForecast, Tokens
from mamba_server.cache.return_times import BINS, EDGES, HazardRatio, ReturnTimes

HASH_BYTES = 8
GHOST_BYTES = 730
"""Memory of one ghost in Python, in bytes, without its hashes."""
MAX_BYTES = 32 << 20
MAX_USES = 3
MAX_TURNS = 3
"""Largest number of uses, and of turns, that has statistics of its own; larger numbers share these."""
MAX_OCTAVES = 12
"""Texts of more than 2^11 pages count as equally long."""


class CheckpointKind(IntEnum):
    """Reason why a checkpoint was placed at its depth."""

    END = 0
    """The end of a prompt or an answer."""
    BRANCH = 1
    """Depth at which prompts diverge."""
    GRID = 2
    """Multiple of the track interval: a guess."""


class Ghost:
    """Remembers a depth of a recent prompt where a checkpoint is or could be, and how often prompts return.

    It is a node of the ghost tree: a run of page hashes that ends there.
    """

    __slots__ = (
        "adopted", "age_bin", "arrived", "children", "created_at", "depth", "due", "excess", "kind", "length",
        "node", "parent", "passed", "raw", "returns", "since", "traffic", "turn", "uses",
    )  # fmt: skip

    def __init__(self, parent: "Ghost | None", raw: bytes, kind: CheckpointKind) -> None:
        self.parent = parent
        self.raw = raw
        self.depth: int = (parent.depth if parent else 0) + len(raw) // HASH_BYTES
        """Depth of the end, in pages."""
        self.children: dict[bytes, Ghost] = {}
        self.kind = kind
        self.uses = 0
        self.turn = 0
        """Number of earlier turns of the conversation. Of a grid point: number of deeper grid points of the
        same prompt."""
        self.since = 0
        """Number of the request that created or used it last."""
        self.age_bin = 0
        """Bin of its age."""
        self.due = 0
        """Number of the request at which it leaves that bin; an entry of the clock with another number is
        outdated."""
        self.returns: ReturnTimes | None = None
        """Statistics of its class."""
        self.excess: HazardRatio | None = None
        """Effect of the length of its text on the forecast of its class, until its first use."""
        self.traffic: HazardRatio | None = None
        """Effect of the traffic through the branch above it on the same forecast, until its first use."""
        self.created_at = 0
        """Number of the request that created it."""
        self.passed = 0
        """Number of requests that had it on their path."""
        self.length: int = len(raw) // HASH_BYTES
        """Pages of the text in which it was first seen, as far as that text was new."""
        self.node: Node | None = None
        """Node that holds the checkpoint now; None = not cached."""
        self.arrived = False
        """Whether it stands for a received checkpoint that no prompt has resumed from: it has no place in the
        tree and counts in no statistics."""
        self.adopted: Ghost | None = None
        """Deeper ghost without a checkpoint, whose returns resume from the checkpoint here."""

    @property
    def rate(self) -> float:
        """Expected returns per request for which the checkpoint is kept."""
        return self.own_rate + (self.adopted.own_rate if self.adopted is not None else 0.0)

    @property
    def own_rate(self) -> float:
        """`rate` without the returns to the ghost that this one has adopted."""
        if self.returns is None:
            return 0.0
        rate = self.returns.rate(self.age_bin)
        if self.excess is not None:
            rate *= self.excess.ratio
        return rate if self.traffic is None else rate * self.traffic.ratio

    def adopt_returns(self, other: ReturnForecast) -> bool:
        """Count the returns to `other`, a deeper ghost without a checkpoint, for this checkpoint too.

        Return whether that adds to the rate. Only the deeper ghost with the highest rate counts.
        """
        if other is self or (self.adopted is not None and self.adopted.rate >= other.rate):
            return False
        assert isinstance(other, Ghost)
        self.adopted = other
        return True

    def drop_returns(self) -> None:
        """Stop counting the returns to another ghost."""
        self.adopted = None


class GhostMatch:
    """The ghosts of one prompt, and where it diverges from all earlier prompts."""

    __slots__ = ("shared", "tip")

    def __init__(self, tip: Ghost, shared: int) -> None:
        self.tip = tip
        """Ghost of the prompt's end."""
        self.shared = shared
        """Number of pages that an earlier prompt began with, too."""

    def path(self) -> Iterator[Ghost]:
        """Yield the ghosts on the path, deepest first."""
        ghost = self.tip
        while ghost.parent is not None:
            yield ghost
            ghost = ghost.parent


class GhostTree:
    """Remembers recent prompts by the hashes of their pages, cached or not, to predict which return.

    `max_bytes` bounds hashes and objects together: the ghost used longest ago is forgotten first.
    """

    def __init__(self, page_size: int, max_bytes: int = MAX_BYTES) -> None:
        self.page_size = page_size
        self.max_bytes = max_bytes
        self.now = 0
        self.bytes = 0
        self._root = Ghost(None, b"", CheckpointKind.BRANCH)
        self._recent: OrderedDict[int, Ghost] = OrderedDict()
        self._clock: defaultdict[int, list[Ghost]] = defaultdict(list)
        """Ghosts by the number of the request at which they leave the bin of their age."""
        self._mixer = PageMixer(page_size)
        all_returns = self._all_returns = ReturnTimes(None)
        self._by_kind = {kind: ReturnTimes(all_returns) for kind in CheckpointKind}
        self._by_uses = {
            (kind, uses): ReturnTimes(self._by_kind[kind])
            for kind in CheckpointKind
            for uses in range(MAX_USES + 1)
        }
        self._by_turn = {
            (kind, uses, turn): ReturnTimes(self._by_uses[kind, uses])
            for kind, uses in self._by_uses
            for turn in range(MAX_TURNS + 1)
        }
        self._by_length: defaultdict[tuple[CheckpointKind, int, int], HazardRatio] = defaultdict(HazardRatio)
        """Ratios of ghosts that were never used, by kind, turn and octave of the length."""
        self._by_traffic: defaultdict[tuple[CheckpointKind, int], HazardRatio] = defaultdict(HazardRatio)
        """Ratios of ghosts that were never used and lie below a branch, by kind and octave of the number of
        requests between two that pass the branch."""

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def unknown(self) -> float:
        """Rate of a checkpoint whose ghost was forgotten: the rate of a very old checkpoint."""
        return self._all_returns.rate(BINS // 2)

    def hashes(self, token_ids: Tokens, salt: str) -> bytes:
        """Return one hash per whole page of `token_ids`; with another salt all of them differ."""
        mixed = self._mixer.pages(token_ids)
        if salt and len(mixed):
            mixed[0] ^= np.frombuffer(blake2b(salt.encode(), digest_size=8).digest(), np.uint64)[0]
        return mixed.tobytes()

    # --- requests ------------------------------------------------------------------------------------

    def observe(self, token_ids: Tokens, salt: str) -> tuple[GhostMatch, list[Ghost]]:
        """Record a request for `token_ids`.

        Return its match, and the ghosts whose age has entered another bin since the request before.
        """
        self.now += 1
        aged = self._age()
        raw = self.hashes(token_ids[:-1], salt)
        node, shared, used = self._root, 0, self._root
        size = len(raw) // HASH_BYTES
        while shared < size:
            child = node.children.get(raw[shared * HASH_BYTES : (shared + 1) * HASH_BYTES])
            if child is None:
                break
            same = _common(child.raw, raw, shared * HASH_BYTES)
            shared += same
            if same * HASH_BYTES < len(child.raw):
                # Another prompt continued differently: a branch from now on.
                node = self._split(child, same, CheckpointKind.BRANCH)
                break
            node = used = child
        if used is not self._root:
            self._use(used, to_its_end=used.depth == size)
        if shared < size:
            turn = used.turn + 1 if used.kind is CheckpointKind.END and used is node else 0
            node = self._add(node, raw[shared * HASH_BYTES :], CheckpointKind.END, turn)
        match = GhostMatch(node, shared)
        self._touch(node, passed=1)
        self._forget()
        return match, aged

    def ghost_at(self, match: GhostMatch, depth: int, kind: CheckpointKind, turn: int = 0) -> Ghost | None:
        """Return the ghost at page `depth` of a prompt; create it, of `kind` and `turn`, if there is none.

        The result is None behind the end of the prompt, or if the prompt was forgotten.
        """
        ghost: Ghost | None = match.tip
        while ghost is not None and ghost.parent is not None and ghost.parent.depth >= depth:
            ghost = ghost.parent
        if ghost is None or ghost.parent is None or ghost.depth < depth:
            return None
        if ghost.depth == depth:
            return ghost
        return self._split(ghost, depth - ghost.parent.depth, kind, turn)

    def observe_answer(self, match: GhostMatch, token_ids: Tokens, salt: str) -> Ghost | None:
        """Record that the sequence of `match` ended with `token_ids`; return the ghost of this end.

        `token_ids` are the prompt and the answer, cut to whole pages. The result is None if the prompt was
        forgotten.
        """
        tip = match.tip
        if len(token_ids) // self.page_size <= tip.depth:
            return self.ghost_at(match, len(token_ids) // self.page_size, CheckpointKind.END)
        if tip.parent is None:
            return None
        # The hashes below the first page do not depend on the salt.
        raw = self.hashes(token_ids[tip.depth * self.page_size :], "")
        turn = tip.turn
        while raw and (child := tip.children.get(raw[:HASH_BYTES])) is not None:
            same = _common(child.raw, raw, 0)
            tip = (
                child
                if same * HASH_BYTES == len(child.raw)
                else self._split(child, same, CheckpointKind.BRANCH)
            )
            raw = raw[same * HASH_BYTES :]
        if not raw:
            return tip
        end = self._add(tip, raw, CheckpointKind.END, turn)
        self._touch(end)
        self._forget()
        return end

    def arrival(self) -> Ghost:
        """Return a ghost for a received checkpoint, with the forecast of a checkpoint that was used just now.

        The request for which a checkpoint is received is no return to it, so nothing is counted until that
        request has a ghost of its own in the tree.
        """
        ghost = Ghost(self._root, b"", CheckpointKind.END)
        ghost.arrived = True
        ghost.uses = 1
        ghost.returns = self._by_turn[CheckpointKind.END, 1, 0]
        ghost.since = self.now
        self._enter(ghost, 0)
        return ghost

    # --- statistics ----------------------------------------------------------------------------------

    def _start(self, ghost: Ghost) -> None:
        turn = min(ghost.turn, MAX_TURNS)
        ghost.returns = self._by_turn[ghost.kind, min(ghost.uses, MAX_USES), turn]
        octave = min(ghost.length.bit_length(), MAX_OCTAVES)
        # After its first use, the record of the ghost itself says more.
        ghost.excess = ghost.traffic = None
        if not ghost.uses:
            ghost.excess = self._by_length[ghost.kind, turn, octave]
            ghost.traffic = self._traffic_above(ghost)
        ghost.since = self.now
        self._enter(ghost, 0)

    def _traffic_above(self, ghost: Ghost) -> HazardRatio | None:
        """Return the hazard ratio for as much traffic as passes the nearest branch above `ghost`.

        The result is None if there is no such branch.
        """
        branch = ghost.parent
        while branch is not None and branch.kind is not CheckpointKind.BRANCH:
            branch = branch.parent
        if branch is None or branch.parent is None:
            return None
        gap = (self.now - branch.created_at) // max(1, branch.passed)
        return self._by_traffic[ghost.kind, min(gap.bit_length(), MAX_OCTAVES)]

    def _enter(self, ghost: Ghost, age_bin: int) -> None:
        returns, excess = ghost.returns, ghost.excess
        assert returns is not None
        ghost.age_bin = age_bin
        if not ghost.arrived:
            returns.entered(age_bin)
        if excess is not None:
            share = returns.share(age_bin)
            excess.entered(share)
            if ghost.traffic is not None:
                ghost.traffic.entered(share * excess.ratio)
        due = ghost.due = ghost.since + EDGES[age_bin + 1]
        self._clock[due].append(ghost)

    def _use(self, ghost: Ghost, *, to_its_end: bool) -> None:
        """Record that a request resumes at `ghost`, and continues or (`to_its_end`) ends on the same page."""
        assert ghost.returns is not None
        ghost.returns.returned(ghost.age_bin)
        if ghost.excess is not None:
            ghost.excess.returned()
        if ghost.traffic is not None:
            ghost.traffic.returned()
        if to_its_end and ghost.kind is CheckpointKind.END:
            ghost.turn += 1
        else:
            ghost.uses += 1
        self._start(ghost)

    def _age(self) -> list[Ghost]:
        """Move every ghost that has outgrown its bin to the next one; return all of them."""
        aged, now = [], self.now
        for ghost in self._clock.pop(now, ()):
            if ghost.due != now or ghost.parent is None or (ghost.arrived and ghost.node is None):
                continue
            # Ages grow by one, so each ghost is handled exactly at the edge between two bins.
            if ghost.age_bin < BINS - 2:
                self._enter(ghost, ghost.age_bin + 1)
            aged.append(ghost)
        return aged

    # --- the tree ------------------------------------------------------------------------------------

    def _add(self, parent: Ghost, raw: bytes, kind: CheckpointKind, turn: int) -> Ghost:
        ghost = Ghost(parent, raw, kind)
        ghost.turn = turn
        ghost.created_at = self.now
        parent.children[raw[:HASH_BYTES]] = ghost
        if (
            len(parent.children) > 1
            and parent.kind is not CheckpointKind.BRANCH
            and parent.parent is not None
        ):
            parent.kind = CheckpointKind.BRANCH
        self._recent[id(ghost)] = ghost
        self.bytes += GHOST_BYTES + len(raw)
        self._start(ghost)
        return ghost

    def _split(self, child: Ghost, keep: int, kind: CheckpointKind, turn: int = 0) -> Ghost:
        """Cut `child` after `keep` pages; return the upper part, a new ghost of that `kind` and `turn`."""
        parent = child.parent
        assert parent is not None
        cut = keep * HASH_BYTES
        upper = Ghost(parent, child.raw[:cut], kind)
        upper.turn = turn
        upper.length = child.length
        upper.created_at, upper.passed = child.created_at, child.passed
        parent.children[child.raw[:HASH_BYTES]] = upper
        child.raw = child.raw[cut:]
        child.parent = upper
        upper.children[child.raw[:HASH_BYTES]] = child
        self._recent[id(upper)] = upper
        self.bytes += GHOST_BYTES
        self._start(upper)
        return upper

    def _touch(self, tip: Ghost, passed: int = 0) -> None:
        """Mark the path to `tip` as used last, upper parts after lower ones: the oldest is always a leaf.

        `passed` is the number of requests to count for each ghost on the path.
        """
        ghost = tip
        while ghost.parent is not None:
            self._recent.move_to_end(id(ghost))
            ghost.passed += passed
            ghost = ghost.parent

    def _forget(self) -> None:
        while self.bytes > self.max_bytes and len(self._recent) > 1:
            _, ghost = self._recent.popitem(last=False)
            assert ghost.parent is not None
            del ghost.parent.children[ghost.raw[:HASH_BYTES]]
            ghost.parent = None
            self.bytes -= GHOST_BYTES + len(ghost.raw)


def _common(edge: bytes, raw: bytes, offset: int) -> int:
    """Return how many pages at the beginning of `edge` are equal to those in `raw` from byte `offset` on."""
    if raw.startswith(edge, offset):
        return len(edge) // HASH_BYTES
    size = min(len(edge), len(raw) - offset)
    left, right = np.frombuffer(edge, np.uint64, size // 8), np.frombuffer(raw, np.uint64, size // 8, offset)
    differs = left != right
    first = int(differs.argmax())
    return first if differs[first] else len(left)
