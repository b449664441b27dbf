"""The state cache: admits, extends, tracks and retires sequences over one arena and one radix tree.

The scheduler calls it with token arrays and step numbers; it answers with slots and pages, or None for
"not now". Pure: no clock, no device, no torch. Invariant names in comments are those of the state-cache page.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mamba_server.cache.arena import NO_PAGES, AllocationSite, Arena, PageOwner
from mamba_server.cache.counters import CacheCounters
from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.ghosts import GhostTree, Place, Sighting
from mamba_server.cache.holding import Checkpoint, Holding, PendingCheckpoint
from mamba_server.cache.node import Node, Tokens
from mamba_server.cache.placement import Placement, decode_spacing, place
from mamba_server.cache.room import Room
from mamba_server.cache.slot_life import SlotState
from mamba_server.cache.strategy import Reservation
from mamba_server.cache.tree import Match, RadixTree

NO_TOKENS: Tokens = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class _Retiring:
    fence: int
    holding: Holding
    tokens: Callable[[], Tokens]


class StateCache:
    """One device's cache. `track_interval` and `page_size` in tokens; `cap`: checkpoints per path."""

    def __init__(
        self,
        arena: Arena,
        tree: RadixTree,
        strategy: Reservation,
        *,
        track_interval: int,
        cap: int,
        prefix_caching: bool = True,
    ) -> None:
        self.arena = arena
        self.tree = tree
        self.strategy = strategy
        self.page_size = tree.page_size
        self.track_interval = track_interval
        self.cap = cap
        self.prefix_caching = prefix_caching
        self.counters = CacheCounters()
        self.room = Room(arena, tree, self.counters)
        self.holdings: dict[int, Holding] = {}
        self._retiring: list[_Retiring] = []
        self.ghosts: GhostTree | None = None
        if prefix_caching and tree.eviction.policy == "RecomputeCost":
            self.ghosts = GhostTree(tree.page_size)
            tree.eviction.foresee(self.ghosts, arena.pages_per_slab)
        self._prefilling: Counter[tuple[str, bytes]] = Counter()

    # --- admission -----------------------------------------------------------------------------------

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def never_fits(self, tokens: int, strategy: Reservation | None = None) -> bool:
        """A sequence of `tokens` tokens could not run even with the arena to itself."""
        slabs = self.arena.slabs - 1 - (strategy or self.strategy).slots_per_sequence
        per_slab = self.arena.pages_per_slab
        return slabs < 0 or (per_slab > 0 and self.pages_for(tokens) > slabs * per_slab)

    def match(self, tokens: Tokens, salt: str, step: int) -> Match:
        """What the tree has of `tokens`; changes nothing."""
        if not self.prefix_caching:
            return Match(0, 0, 0, None, NO_PAGES, "")
        found = self.tree.match(tokens, salt, step)
        if found.cause == "new" and self._prefilling[salt, tokens[: self.page_size].tobytes()]:
            return Match(
                found.kv_depth, found.state_depth, found.resumable, found.node, found.pages, "in_flight"
            )
        return found

    def without(self, match: Match, cause: str) -> Match:
        """`match`, but nothing of it is resumed, because of `cause`."""
        return Match(
            match.kv_depth, match.state_depth, 0, None, NO_PAGES, cause if match.resumable else match.cause
        )

    def admit(
        self,
        tokens: Tokens,
        salt: str,
        match: Match,
        context: int,
        turn_boundary: int,
        branches: Sequence[int] = (),
    ) -> Holding | None:
        """Slots and the pages of the first `context` tokens, resumed at `match`; None (no change) if short.

        `branches`: depths at which prompts that wait part from this one. The matched checkpoint is locked
        before anything is evicted (W8) and read in place (O4).
        """
        if match.node is not None:
            self.tree.lock(match.node, state=True)
        grant = self.room.allocate(
            AllocationSite.ADMIT,
            live=1,
            tracking=self.strategy.tracking_slots,
            pages=self.pages_for(context) - len(match.pages),
        )
        if grant is None:
            if match.node is not None:
                self.tree.unlock_state(match.node)
                self.tree.unlock(match.node)
            return None
        placement = Placement((), ())
        sighting = self._sight(tokens, salt) if self.ghosts is not None else None
        if self.prefix_caching:
            placement = place(
                len(tokens),
                match.resumable,
                self._parting(match, branches, sighting),
                turn_boundary,
                self.page_size,
                self.track_interval,
                self.cap,
            )
        live, *spare = grant.slots
        holding = Holding(salt, live, spare, placement)
        holding.sighting = sighting
        if sighting is not None:
            self._choose(holding, match, branches)
        holding.append_pages(match.pages)
        holding.append_pages(grant.pages)
        holding.resumed = holding.depth = match.resumable
        if match.node is not None:
            holding.node = holding.match_node = match.node
            holding.slot_in = match.node.slot
            self.tree.touch(match.node)
        self.holdings[id(holding)] = holding
        if self.prefix_caching:
            holding.first_page = tokens[: self.page_size].tobytes()
            self._prefilling[salt, holding.first_page] += 1
        return holding

    def _sight(self, tokens: Tokens, salt: str) -> Sighting:
        assert self.ghosts is not None
        sighting, aged = self.ghosts.seen(tokens, salt)
        for ghost in aged:
            if ghost.node is not None:
                self.tree.eviction.offer(ghost.node)
        return sighting

    def _parting(self, match: Match, branches: Sequence[int], sighting: Sighting | None) -> Sequence[int]:
        """Depths at which other prompts part from this one, most important first."""
        if sighting is None:
            return (match.kv_depth, *branches)
        shared = max(match.kv_depth, sighting.shared * self.page_size)
        known = sorted(
            (
                (ghost.rate * (ghost.depth * self.page_size - match.resumable), ghost.depth * self.page_size)
                for ghost in sighting.path()
                if ghost.depth * self.page_size > match.resumable
                and (ghost.uses or ghost.place is Place.BRANCH)
            ),
            reverse=True,
        )
        return (*branches, shared, *(depth for _, depth in known))

    def _choose(self, holding: Holding, match: Match, sure: Sequence[int]) -> None:
        """Keep of the placement what promises more than what it pushes out; `sure`: somebody waits for it."""
        ghosts, sighting, eviction = self.ghosts, holding.sighting, self.tree.eviction
        assert ghosts is not None
        assert sighting is not None
        required, optional = holding.placement.required, holding.placement.optional
        places = [(depth, Place.END, 0) for depth in required]
        places += [(depth, Place.GRID, rank) for rank, depth in enumerate(reversed(optional))]
        marked = {
            depth: ghosts.mark(sighting, depth // self.page_size, place, rank)
            for depth, place, rank in places
        }
        left = {depth: ghost for depth, ghost in marked.items() if ghost is not None}
        chosen = {depth: left.pop(depth) for depth in sure if depth in left}
        least = eviction.least()
        spare = self._slots_to_spare
        while left:
            best, most = 0, -1.0
            for depth, ghost in left.items():
                tokens = depth - max((each for each in chosen if each < depth), default=match.resumable)
                pages = 0 if any(each > depth for each in chosen) else tokens // self.page_size
                worth = eviction.worth(ghost.rate, tokens, pages)
                if worth > most and (worth > least or (spare and depth in required)):
                    best, most = depth, worth
            if not best:
                break
            chosen[best] = left.pop(best)
        for depth, ghost in left.items():
            above = max((each for each in chosen if each < depth), default=0)
            if above:
                chosen[above].serves(ghost)
            else:
                eviction.inherit(match.node, ghost)
        forgotten = [depth for depth in required if marked[depth] is None]
        kept = tuple(sorted({*forgotten, *(depth for depth in required if depth in chosen)}))
        holding.placement = Placement(kept, optional)
        holding.worthwhile = frozenset(depth for depth in optional if depth in chosen)

    def prefill_done(self, holding: Holding) -> None:
        """The whole prompt has been computed: a later miss on it is no longer `in_flight`."""
        if self.prefix_caching:
            key = (holding.salt, holding.first_page)
            self._prefilling[key] -= 1
            if self._prefilling[key] <= 0:
                del self._prefilling[key]

    def extend(self, holding: Holding, context: int) -> bool:
        """Pages so that `holding` covers `context` tokens; False (no change) if short."""
        needed = self.pages_for(context) - holding.page_count
        if needed <= 0:
            return True
        grant = self.room.allocate(AllocationSite.EXTEND, pages=needed)
        if grant is None:
            return False
        holding.append_pages(grant.pages)
        return True

    # --- checkpoints ---------------------------------------------------------------------------------

    @property
    def leaves_checkpoints(self) -> bool:
        """A prefill that starts now will get the slots for its checkpoints, as far as can be foreseen."""
        return self.prefix_caching and (self.strategy.evicts_for_checkpoints or self.arena.free_slots > 0)

    def add_branch(self, holding: Holding, depth: int) -> None:
        """Another prompt parts from this one at `depth`, which its prefill has not reached: leave a state."""
        if depth not in holding.placement.required:
            placement = holding.placement
            optional = tuple(each for each in placement.optional if each != depth)
            holding.placement = Placement(tuple(sorted((*placement.required, depth))), optional)

    def plan_prefill(self, holding: Holding, stop: int, step: int) -> list[Checkpoint]:
        """Checkpoints that the piece [holding.depth, stop) of `step` will write, each with its slot."""
        planned = []
        for depth in holding.placement.required:
            if holding.depth < depth <= stop:
                slot = self._checkpoint_slot(holding, evict=self.strategy.evicts_for_checkpoints)
                planned.append((depth, slot))
        planned.extend(
            (depth, self._optional_slot(holding, depth))
            for depth in holding.placement.optional
            if holding.depth < depth <= stop
        )
        out = []
        for depth, slot in sorted(planned):
            if not slot:
                self.counters.skipped += 1
                continue
            checkpoint = Checkpoint(depth, slot)
            holding.pending.append(PendingCheckpoint(checkpoint, step, decode=False))
            self.arena.name_in_step(slot, step)
            out.append(checkpoint)
        return out

    @property
    def _slots_to_spare(self) -> bool:
        """Never the last free slab: that one belongs to whoever is admitted next."""
        return self.arena.free_slots > 2 * self.strategy.slots_per_sequence

    def _optional_slot(self, holding: Holding, depth: int) -> int:
        """A slot for a track-interval checkpoint: a free one, or that of a state worth less than this."""
        if self._slots_to_spare:
            return self._checkpoint_slot(holding, evict=False)
        if not self.strategy.evicts_for_checkpoints:
            return 0
        return self._checkpoint_slot(holding, evict=True) if depth in holding.worthwhile else 0

    def _checkpoint_slot(self, holding: Holding, *, evict: bool) -> int:
        grant = self.room.allocate(AllocationSite.PREFILL_CHECKPOINT, tracking=1, evict=evict)
        return grant.slots[0] if grant is not None else 0

    def tracks_decode(self, depth: int, outputs: int) -> bool:
        """Whether a sequence leaves a checkpoint at `depth`, reached with its `outputs`-th output token."""
        if not self.prefix_caching or depth % self.page_size:
            return False
        if not self.strategy.tracks_decode and not self._slots_to_spare:
            return False
        spacing = decode_spacing(outputs, self.page_size, self.track_interval)
        return not depth % spacing or not depth % self.track_interval

    def plan_decode(self, holding: Holding, step: int) -> int:
        """The slot that the decode step to depth `holding.depth + 1` also writes; 0 = none.

        Called only where `tracks_decode` says so.
        """
        slot = 0
        if holding.spare:
            slot = holding.spare.pop()
        elif self.strategy.borrows:
            # L2: outside the boundary window a lazy sequence holds one tracking slot.
            grant = self.room.allocate(AllocationSite.BORROW, tracking=1)
            slot = grant.slots[0] if grant is not None else 0
        elif not self.strategy.tracks_decode:
            # Without a buffer: a free slot, the tree's (so anybody's) as soon as it is written.
            slot = self._checkpoint_slot(holding, evict=False)
        elif holding.ready:
            slot = holding.ready.pop(0).slot
            self.arena.move(slot, SlotState.TRACK_PENDING)
        if not slot:
            self.counters.skipped += 1
            return 0
        checkpoint = Checkpoint(holding.depth + 1, slot)
        holding.pending.append(PendingCheckpoint(checkpoint, step, decode=self.strategy.tracks_decode))
        self.arena.name_in_step(slot, step)
        return slot

    def launched(self, holding: Holding, depth: int, step: int) -> None:
        """`step` takes the live slot of `holding` to `depth`; the next forward reads it there."""
        holding.depth = depth
        holding.last_step = step
        holding.slot_in = holding.live

    # --- commit --------------------------------------------------------------------------------------

    def advance(self, step: int) -> None:
        """`step` is complete: fences up to it have passed. Called before the commits of its sequences."""
        self.arena.advance(step)

    def commit(self, holding: Holding, tokens: Tokens, step: int) -> None:
        """What `step` wrote for `holding` is complete. `tokens`: all known tokens of the sequence."""
        if holding.match_node is not None:
            self.tree.unlock_state(holding.match_node)
            holding.match_node = None
        if not holding.pending:
            return
        still = []
        for pending in holding.pending:
            if pending.step > step:
                still.append(pending)
                continue
            checkpoint = pending.checkpoint
            self.arena.move(checkpoint.slot, SlotState.TRACK_READY)
            if pending.decode:
                self._keep_ready(holding, checkpoint)
            else:
                self._donate(holding, tokens, checkpoint, step)
        holding.pending = still

    def _keep_ready(self, holding: Holding, checkpoint: Checkpoint) -> None:
        holding.ready.append(checkpoint)
        if self.strategy.borrows or len(holding.ready) > max(1, self.strategy.tracking_slots):
            while len(holding.ready) > 1:
                self.arena.free_slot(holding.ready.pop(0).slot)

    def _donate(self, holding: Holding, tokens: Tokens, checkpoint: Checkpoint, step: int) -> None:
        """Move `checkpoint` (TRACK_READY or LIVE) and the pages below it to the tree (P1, W2)."""
        count = checkpoint.depth // self.page_size
        if checkpoint.depth % self.page_size or count > holding.page_count:
            raise LedgerViolation(f"P5: checkpoint at depth {checkpoint.depth} off the page grid")
        node, taken = self._insert(holding, tokens[: checkpoint.depth], checkpoint.slot, step)
        if taken:
            self.arena.move(checkpoint.slot, SlotState.CACHED)
            self.counters.made += 1
            self._cap_path(node)
        else:
            self.arena.free_slot(checkpoint.slot)
            self.counters.duplicates += 1

    def _insert(self, holding: Holding, tokens: Tokens, slot: int, step: int) -> tuple[Node, bool]:
        count = len(tokens) // self.page_size
        pages = holding.pages[:count]
        guess = len(tokens) in holding.placement.optional
        ghost = None
        if self.ghosts is not None and slot and holding.sighting is not None:
            if count <= holding.sighting.tip.depth:
                ghost = self.ghosts.mark(holding.sighting, count, Place.GRID if guess else Place.END)
            else:
                ghost = self.ghosts.answered(holding.sighting, tokens, holding.salt)
        node, had, taken = self.tree.insert(tokens, pages, slot, step, holding.salt, ghost=ghost)
        if holding.node is None or node.depth > holding.node.depth:
            self.tree.lock(node, state=False)
            if holding.node is not None:
                self.tree.unlock(holding.node)
            holding.node = node
        if self.arena.pages_per_slab:
            self._give_pages(holding, node, count, had // self.page_size)
        return node, taken

    def _give_pages(self, holding: Holding, node: Node, count: int, had: int) -> None:
        """Pages past the first `had` become the tree's; of the others the sequence takes the tree's copy."""
        if count > had:
            self.arena.give_pages_to_tree(holding.pages[had:count])
        if not had:
            return
        of_tree = np.concatenate([each.pages for each in node.path()])[:had]
        own = holding.pages[:had]
        twice = own != of_tree
        if twice.any():
            # Launched steps still read the copies: they go when the last of those is complete (O3).
            spare = own[twice].copy()
            holding.pages[:had] = of_tree
            holding.pages_changed = True
            self.arena.free_pages_of(spare, holding.last_step, PageOwner.SEQUENCE)

    def _cap_path(self, node: Node) -> None:
        """At most `cap` checkpoints on a path: ends and branches stay, the cheapest to lose goes."""
        path = self.tree.checkpoints_on_path(node)
        while len(path) > self.cap:
            above = [0] + [each.depth for each in path[:-1]]
            droppable = [
                (each.depth - shallower if self.ghosts is None else self.tree.eviction.weigh(each), index)
                for index, (each, shallower) in enumerate(zip(path, above, strict=True))
                if each is not node and not each.state_lock and len(each.children) < 2
            ]
            if not droppable:
                return
            dropped = path.pop(min(droppable)[1])
            self.tree.eviction.evicted(dropped)
            self.arena.free_slot(self.tree.drop_state(dropped))
            self.counters.evicted += 1

    # --- retire --------------------------------------------------------------------------------------

    def retire(self, holding: Holding, tokens: Callable[[], Tokens]) -> None:
        """The sequence ended or was preempted: give back all, once its last launched step is complete.

        `tokens()` is asked then for the tokens that count; what lies deeper is not donated (L3, L4).
        """
        if holding.last_step > self.arena.completed:
            self._retiring.append(_Retiring(holding.last_step, holding, tokens))
        else:
            self._retire_now(holding, tokens())

    def settle(self) -> None:
        """Retire what was waiting for a fence that has passed. Called after the commits of a step."""
        if self._retiring:
            due = [each for each in self._retiring if each.fence <= self.arena.completed]
            self._retiring = [each for each in self._retiring if each.fence > self.arena.completed]
            for each in due:
                self._retire_now(each.holding, each.tokens())

    def distrust(self, step: int) -> None:
        """The device work of `step` failed: who left the batch before that was known donates nothing."""
        self._retiring = [
            replace(each, tokens=lambda: NO_TOKENS) if each.fence >= step else each for each in self._retiring
        ]

    @property
    def retiring(self) -> int:
        """Sequences whose memory comes back with the next fence."""
        return len(self._retiring)

    def _retire_now(self, holding: Holding, tokens: Tokens) -> None:
        step = holding.last_step
        if holding.match_node is not None:
            self.tree.unlock_state(holding.match_node)
            holding.match_node = None
        usable = min(len(tokens), holding.depth)
        if self.prefix_caching and usable:
            self._settle_pending(holding, tokens, usable)
        for pending in holding.pending:
            self.arena.free_slot(pending.checkpoint.slot)
        holding.pending = []
        if self.prefix_caching and step:
            self._donate_end(holding, tokens, usable)
        if holding.live:
            self.arena.free_slot(holding.live)
        for checkpoint in holding.ready:
            self.arena.free_slot(checkpoint.slot)
        for slot in holding.spare:
            self.arena.free_slot(slot)
        pages = holding.pages[: holding.page_count]
        if self.arena.pages_per_slab:
            own = pages[self.arena.page_owner[pages] == PageOwner.SEQUENCE]
            self.arena.free_pages_of(own, 0, PageOwner.SEQUENCE)
        if holding.node is not None:
            self.tree.unlock(holding.node)
        del self.holdings[id(holding)]

    def _settle_pending(self, holding: Holding, tokens: Tokens, usable: int) -> None:
        """Checkpoints of the last steps of a sequence that left the batch before those steps committed."""
        left = []
        for pending in holding.pending:
            checkpoint = pending.checkpoint
            if pending.step > self.arena.completed or checkpoint.depth > usable:
                left.append(pending)
                continue
            self.arena.move(checkpoint.slot, SlotState.TRACK_READY)
            if pending.decode:
                self._keep_ready(holding, checkpoint)
            else:
                self._donate(holding, tokens, checkpoint, pending.step)
        holding.pending = left

    def _donate_end(self, holding: Holding, tokens: Tokens, usable: int) -> None:
        """The deepest state on the page grid goes to the tree, then the pages up to the end."""
        if holding.depth == usable and usable and usable % self.page_size == 0:
            live, holding.live = holding.live, 0
            self._donate(holding, tokens, Checkpoint(usable, live), holding.last_step)
        else:
            fitting = [each for each in holding.ready if each.depth <= usable]
            if fitting:
                holding.ready.remove(fitting[-1])
                self._donate(holding, tokens, fitting[-1], holding.last_step)
        whole = usable // self.page_size * self.page_size
        if whole and self.ghosts is None:
            self._insert(holding, tokens[:whole], 0, holding.last_step)

    # --- change of strategy --------------------------------------------------------------------------

    def change_strategy(self, strategy: Reservation) -> str:
        """Run under `strategy` from the next step on. Returns why not (with numbers), or "".

        Running sequences get or give tracking slots here, all or none; what a launched step still writes is
        settled by its commit.
        """
        wanting = []
        for holding in self.holdings.values():
            missing = strategy.tracking_slots - holding.reserved
            wanting.extend([holding] * max(0, missing))
        grant = self.room.allocate(AllocationSite.STRATEGY, tracking=len(wanting))
        if grant is None:
            return (
                f"{strategy.name} needs {len(wanting)} more tracking slots for {len(self.holdings)} running "
                f"sequences; {self.arena.free_slots} are free and {self.tree.evictable_slots} evictable"
            )
        for holding, slot in zip(wanting, grant.slots, strict=True):
            holding.spare.append(slot)
        self.strategy = strategy
        for holding in self.holdings.values():
            self._trim_tracking(holding)
        return ""

    def _trim_tracking(self, holding: Holding) -> None:
        """Give back what the strategy does not reserve: empty slots first, then the older checkpoints."""
        extra = holding.reserved - self.strategy.tracking_slots
        while extra > 0 and holding.spare:
            self.arena.free_slot(holding.spare.pop())
            extra -= 1
        while extra > 0 and len(holding.ready) > 1:
            self.arena.free_slot(holding.ready.pop(0).slot)
            extra -= 1
