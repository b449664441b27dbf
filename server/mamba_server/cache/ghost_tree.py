"""The ghost tree: a bounded memory of the prompts that came by, as page hashes, whatever is still cached.

It says where a new prompt parts from all that were seen, and counts when each place at which a checkpoint
could be (an end, a branch, a grid point) is asked for again: what eviction and placement foresee returns
from. One request uses one place, the deepest that it begins with. Called by the state cache; pure. It never
holds pages or slots.
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
"""What Python takes for one ghost beside its hashes."""
MOST_BYTES = 32 << 20
MOST_USES = 3
MOST_TURNS = 3
"""Uses and turns beyond these make no class of their own."""
MOST_OCTAVES = 12
"""Texts of more than 2^11 pages are taken to be alike."""


class CheckpointKind(IntEnum):
    """What a checkpoint was left for."""

    END = 0
    """The end of a prompt or an answer."""
    BRANCH = 1
    """Where prompts part."""
    GRID = 2
    """A guess: nobody asked for this depth."""


class Ghost:
    """A run of page hashes; a checkpoint could be, or is, at its end."""

    __slots__ = (
        "at", "children", "depth", "due", "excess", "first", "heir", "length", "node", "parent", "passed",
        "place", "raw", "returns", "since", "traffic", "turn", "uses",
    )  # fmt: skip

    def __init__(self, parent: "Ghost | None", raw: bytes, place: CheckpointKind) -> None:
        self.parent = parent
        self.raw = raw
        self.depth: int = (parent.depth if parent else 0) + len(raw) // HASH_BYTES
        """In pages."""
        self.children: dict[bytes, Ghost] = {}
        self.place = place
        self.uses = 0
        self.turn = 0
        """Ends on its path before it: how long the conversation is. Of a guess: how many lie behind it."""
        self.since = 0
        """The request that made or used it last."""
        self.at = 0
        """The bin of its age."""
        self.due = 0
        """When it leaves that bin; where the clock says otherwise it is out of date."""
        self.returns: ReturnTimes | None = None
        """The statistics of its class."""
        self.excess: HazardRatio | None = None
        """While it was never used: what the length of its text adds to what its class foretells."""
        self.traffic: HazardRatio | None = None
        """While it was never used: what the traffic through the branch above it adds to that."""
        self.first = 0
        """The request that made it."""
        self.passed = 0
        """How many requests had it on their path."""
        self.length: int = len(raw) // HASH_BYTES
        """Pages of the text, new when it came, that it was first seen in."""
        self.node: Node | None = None
        """The checkpoint that is here now."""
        self.heir: Ghost | None = None
        """The deeper place, cached no longer, whose returns the checkpoint here serves too."""

    @property
    def rate(self) -> float:
        """Returns to be expected per request of keeping it."""
        return self.own_rate + (self.heir.own_rate if self.heir is not None else 0.0)

    @property
    def own_rate(self) -> float:
        """Without the heir's."""
        if self.returns is None:
            return 0.0
        rate = self.returns.rate(self.at)
        if self.excess is not None:
            rate *= self.excess.ratio
        return rate if self.traffic is None else rate * self.traffic.ratio

    def adopt_returns(self, other: ReturnForecast) -> bool:
        """Count the returns to `other`, a deeper place that is cached no longer, for the checkpoint here too;
        return whether that adds to its rate. One deeper place counts: that which returns most."""
        if other is self or (self.heir is not None and self.heir.rate >= other.rate):
            return False
        assert isinstance(other, Ghost)
        self.heir = other
        return True

    def drop_returns(self) -> None:
        """Count returns to the checkpoint here alone."""
        self.heir = None


class GhostMatch:
    """What the ghost tree knows of one prompt: the places on its path, and where it parts from the others."""

    __slots__ = ("shared", "tip")

    def __init__(self, tip: Ghost, shared: int) -> None:
        self.tip = tip
        """The ghost of its end."""
        self.shared = shared
        """Pages that an earlier prompt began with too."""

    def path(self) -> Iterator[Ghost]:
        """The places on its path, deepest first."""
        at = self.tip
        while at.parent is not None:
            yield at
            at = at.parent


class GhostTree:
    """`most_bytes` bounds hashes and objects together: what was asked for longest ago is forgotten first."""

    def __init__(self, page_size: int, most_bytes: int = MOST_BYTES) -> None:
        self.page_size = page_size
        self.most_bytes = most_bytes
        self.now = 0
        self.bytes = 0
        self._root = Ghost(None, b"", CheckpointKind.BRANCH)
        self._recent: OrderedDict[int, Ghost] = OrderedDict()
        self._clock: defaultdict[int, list[Ghost]] = defaultdict(list)
        """Who leaves the bin of its age at which request."""
        self._mixer = PageMixer(page_size)
        everything = self._everything = ReturnTimes(None)
        self._of_place = {place: ReturnTimes(everything) for place in CheckpointKind}
        self._of_class = {
            (place, uses): ReturnTimes(self._of_place[place])
            for place in CheckpointKind
            for uses in range(MOST_USES + 1)
        }
        self._of_turn = {
            (place, uses, turn): ReturnTimes(self._of_class[place, uses])
            for place, uses in self._of_class
            for turn in range(MOST_TURNS + 1)
        }
        self._of_length: defaultdict[tuple[CheckpointKind, int, int], HazardRatio] = defaultdict(HazardRatio)
        """For places never used: by place, turn and octave of the length."""
        self._of_traffic: defaultdict[tuple[CheckpointKind, int], HazardRatio] = defaultdict(HazardRatio)
        """For places never used below a branch: by place and octave of the requests from one to the next that
        come through there."""

    def __len__(self) -> int:
        return len(self._recent)

    @property
    def unknown(self) -> float:
        """The rate of a checkpoint whose ghost was forgotten: that of the oldest."""
        return self._everything.rate(BINS // 2)

    def hashes(self, token_ids: Tokens, salt: str) -> bytes:
        """One hash per whole page of `token_ids`; those of another salt differ from the first page on."""
        mixed = self._mixer.pages(token_ids)
        if salt and len(mixed):
            mixed[0] ^= np.frombuffer(blake2b(salt.encode(), digest_size=8).digest(), np.uint64)[0]
        return mixed.tobytes()

    # --- what comes by -------------------------------------------------------------------------------

    def observe(self, token_ids: Tokens, salt: str) -> tuple[GhostMatch, list[Ghost]]:
        """A request for `token_ids` came; also the places whose age has changed its bin since the last."""
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
                # Someone else went on here: the place where they part, from now on.
                node = self._split(child, same, CheckpointKind.BRANCH)
                break
            node = used = child
        if used is not self._root:
            self._use(used, to_its_end=used.depth == size)
        if shared < size:
            turn = used.turn + 1 if used.place is CheckpointKind.END and used is node else 0
            node = self._add(node, raw[shared * HASH_BYTES :], CheckpointKind.END, turn)
        sighting = GhostMatch(node, shared)
        self._touch(node, passed=1)
        self._forget()
        return sighting, aged

    def ghost_at(
        self, sighting: GhostMatch, depth: int, place: CheckpointKind, turn: int = 0
    ) -> Ghost | None:
        """The place at page `depth` of a prompt, made if need be; None past its end or if forgotten."""
        at: Ghost | None = sighting.tip
        while at is not None and at.parent is not None and at.parent.depth >= depth:
            at = at.parent
        if at is None or at.parent is None or at.depth < depth:
            return None
        if at.depth == depth:
            return at
        return self._split(at, depth - at.parent.depth, place, turn)

    def observe_answer(self, sighting: GhostMatch, token_ids: Tokens, salt: str) -> Ghost | None:
        """The sequence of `sighting` ended with `token_ids` (whole pages) and leaves a checkpoint there."""
        tip = sighting.tip
        if len(token_ids) // self.page_size <= tip.depth:
            return self.ghost_at(sighting, len(token_ids) // self.page_size, CheckpointKind.END)
        if tip.parent is None:
            return None
        # Below the first page no hash depends on the salt.
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
        made = self._add(tip, raw, CheckpointKind.END, turn)
        self._touch(made)
        self._forget()
        return made

    # --- statistics ----------------------------------------------------------------------------------

    def _start(self, ghost: Ghost) -> None:
        turn = min(ghost.turn, MOST_TURNS)
        ghost.returns = self._of_turn[ghost.place, min(ghost.uses, MOST_USES), turn]
        octave = min(ghost.length.bit_length(), MOST_OCTAVES)
        # Once it was used, its own record says more.
        ghost.excess = ghost.traffic = None
        if not ghost.uses:
            ghost.excess = self._of_length[ghost.place, turn, octave]
            ghost.traffic = self._traffic_above(ghost)
        ghost.since = self.now
        self._enter(ghost, 0)

    def _traffic_above(self, ghost: Ghost) -> HazardRatio | None:
        """Of the nearest branch above; None: there is none."""
        branch = ghost.parent
        while branch is not None and branch.place is not CheckpointKind.BRANCH:
            branch = branch.parent
        if branch is None or branch.parent is None:
            return None
        gap = (self.now - branch.first) // max(1, branch.passed)
        return self._of_traffic[ghost.place, min(gap.bit_length(), MOST_OCTAVES)]

    def _enter(self, ghost: Ghost, at: int) -> None:
        returns, excess = ghost.returns, ghost.excess
        assert returns is not None
        ghost.at = at
        returns.entered(at)
        if excess is not None:
            share = returns.share(at)
            excess.entered(share)
            if ghost.traffic is not None:
                ghost.traffic.entered(share * excess.ratio)
        due = ghost.due = ghost.since + EDGES[at + 1]
        self._clock[due].append(ghost)

    def _use(self, ghost: Ghost, *, to_its_end: bool) -> None:
        """A request resumes at `ghost`, and goes on from there or (`to_its_end`) ends on the same page."""
        assert ghost.returns is not None
        ghost.returns.returned(ghost.at)
        if ghost.excess is not None:
            ghost.excess.returned()
        if ghost.traffic is not None:
            ghost.traffic.returned()
        if to_its_end and ghost.place is CheckpointKind.END:
            ghost.turn += 1
        else:
            ghost.uses += 1
        self._start(ghost)

    def _age(self) -> list[Ghost]:
        """Every ghost that has grown out of its bin enters the next; all of them."""
        aged, now = [], self.now
        for ghost in self._clock.pop(now, ()):
            if ghost.due != now or ghost.parent is None:
                continue
            # Ages grow by one, so each is met at the very edge between two bins.
            if ghost.at < BINS - 2:
                self._enter(ghost, ghost.at + 1)
            aged.append(ghost)
        return aged

    # --- the tree ------------------------------------------------------------------------------------

    def _add(self, parent: Ghost, raw: bytes, place: CheckpointKind, turn: int) -> Ghost:
        made = Ghost(parent, raw, place)
        made.turn = turn
        made.first = self.now
        parent.children[raw[:HASH_BYTES]] = made
        if (
            len(parent.children) > 1
            and parent.place is not CheckpointKind.BRANCH
            and parent.parent is not None
        ):
            parent.place = CheckpointKind.BRANCH
        self._recent[id(made)] = made
        self.bytes += GHOST_BYTES + len(raw)
        self._start(made)
        return made

    def _split(self, child: Ghost, keep: int, place: CheckpointKind, turn: int = 0) -> Ghost:
        """Cut `child` after `keep` pages; the upper part is a new place."""
        parent = child.parent
        assert parent is not None
        cut = keep * HASH_BYTES
        upper = Ghost(parent, child.raw[:cut], place)
        upper.turn = turn
        upper.length = child.length
        upper.first, upper.passed = child.first, child.passed
        parent.children[child.raw[:HASH_BYTES]] = upper
        child.raw = child.raw[cut:]
        child.parent = upper
        upper.children[child.raw[:HASH_BYTES]] = child
        self._recent[id(upper)] = upper
        self.bytes += GHOST_BYTES
        self._start(upper)
        return upper

    def _touch(self, tip: Ghost, passed: int = 0) -> None:
        """The path to `tip` was asked for last, upper parts after lower ones: the oldest is always a leaf.

        `passed`: requests that did.
        """
        at = tip
        while at.parent is not None:
            self._recent.move_to_end(id(at))
            at.passed += passed
            at = at.parent

    def _forget(self) -> None:
        while self.bytes > self.most_bytes and len(self._recent) > 1:
            _, ghost = self._recent.popitem(last=False)
            assert ghost.parent is not None
            del ghost.parent.children[ghost.raw[:HASH_BYTES]]
            ghost.parent = None
            self.bytes -= GHOST_BYTES + len(ghost.raw)


def _common(edge: bytes, raw: bytes, at: int) -> int:
    """Pages of `edge` that `raw` has at byte `at`."""
    if raw.startswith(edge, at):
        return len(edge) // HASH_BYTES
    size = min(len(edge), len(raw) - at)
    left, right = np.frombuffer(edge, np.uint64, size // 8), np.frombuffer(raw, np.uint64, size // 8, at)
    differs = left != right
    first = int(differs.argmax())
    return first if differs[first] else len(left)
