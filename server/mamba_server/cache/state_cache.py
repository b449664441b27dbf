"""`RadixStateCache`: admits, extends, tracks and retires sequences over one arena and one radix tree.

The engine knows it by its protocol (`protocol`) and gets it from `build_state_cache`. Pure: no clock, no
device, no torch. Invariant names in comments are those of the state-cache page.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mamba_planner.strategy import Reservation, decode_spacing
from mamba_server.cache import ledger
from mamba_server.cache.arena import NO_PAGES, AllocationSite, Arena, PageOwner
from mamba_server.cache.checkpoint_choice import CheckpointChoice, CheckpointChooser
from mamba_server.cache.eviction import Eviction, Policy
from mamba_server.cache.ghost_tree import GhostMatch, GhostTree
from mamba_server.cache.node import NO_TOKENS, NearestPrefix, PrefixListener, Tokens
from mamba_server.cache.persistent_batch import Ints, PersistentBatch
from mamba_server.cache.placement import Placement
from mamba_server.cache.protocol import (
    CacheSettings,
    Capacity,
    DecodeRows,
    LedgerAccount,
    ManagedStateCache,
    Refusal,
)
from mamba_server.cache.sequence_allocation import (
    Checkpoint,
    PendingCheckpoint,
    ReplayRows,
    RetiringSequence,
    SequenceAllocation,
)
from mamba_server.cache.slot_state import SlotState
from mamba_server.cache.transit import Quarantine
from mamba_server.cache.tree import Match, RadixTree

AllocationFault = Callable[[AllocationSite], bool]
"""Predicate called before each allocation; True makes the allocation fail."""


class RadixStateCache(Quarantine):
    """State cache of one device by a radix tree; its keyword arguments are the fields of `CacheSettings`."""

    def __init__(
        self,
        arena: Arena,
        tree: RadixTree,
        batch: PersistentBatch,
        strategy: Reservation,
        *,
        track_interval: int,
        cap: int,
        prefix_caching: bool = True,
        min_checkpoint_depth: int = 0,
    ) -> None:
        super().__init__(arena, tree, cap)
        self.batch = batch
        self.strategy = strategy
        self.page_size = tree.page_size
        self.track_interval = track_interval
        self.prefix_caching = prefix_caching
        self.min_checkpoint_depth = min_checkpoint_depth
        self.allocations: dict[int, SequenceAllocation] = {}
        self.replay = ReplayRows(
            batch, page_size=self.page_size, tracks=self.tracks_decode, extend=self.extend
        )
        self._retiring: list[RetiringSequence] = []
        self.donation.ghosts = self._new_ghost_tree()
        self._prefilling: Counter[tuple[str, bytes]] = Counter()

    # --- settings and capacity -----------------------------------------------------------------------

    @property
    def settings(self) -> CacheSettings:
        """Settings that the cache uses now."""
        return CacheSettings(
            self.strategy,
            self.track_interval,
            self.cap,
            self.tree.eviction.policy,
            self.prefix_caching,
            self.min_checkpoint_depth,
            self.tree.fingerprint,
        )

    @property
    def capacity(self) -> Capacity:
        """Memory at this moment."""
        arena, tree, strategy = self.arena, self.tree, self.strategy
        free_slots, retiring = arena.free_slots, len(self._retiring)
        receiving, exported, quarantined, quarantined_pages = self._in_transit()
        return Capacity(
            page_size=self.page_size,
            slabs=arena.slabs - 1,
            pages_per_slab=arena.pages_per_slab,
            slots_per_sequence=strategy.slots_per_sequence,
            free_slots=free_slots,
            evictable_slots=tree.evictable_slots,
            free_pages=arena.free_pages,
            evictable_pages=tree.evictable_pages,
            available_pages=self.reclaimer.available_pages,
            checkpoints=tree.checkpoints,
            admitted=len(self.allocations) - retiring,
            retiring=retiring,
            returning=retiring > 0 or arena.has_fenced or bool(self.installs),
            accepts_checkpoints=self.prefix_caching and (strategy.evicts_for_checkpoints or free_slots > 0),
            receiving=receiving,
            exported=exported,
            quarantined=quarantined,
            quarantined_pages=quarantined_pages,
            pinned=len(tree.pins),
        )

    @property
    def cap(self) -> int:
        """Most checkpoints that a prompt adds, and that a path keeps while slots are short."""
        return self.donation.cap

    @cap.setter
    def cap(self, cap: int) -> None:
        self.donation.cap = cap

    def _new_ghost_tree(self) -> GhostTree | None:
        """Connect the policy in force to a new ghost tree, if it uses one; return that tree."""
        eviction = self.tree.eviction
        ghosts = GhostTree(self.page_size) if self.settings.remembers_prompts else None
        eviction.use_forecast(ghosts, self.arena.pages_per_slab)
        return ghosts

    # --- admission -----------------------------------------------------------------------------------

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold a sequence of `tokens` tokens."""
        return -(-tokens // self.page_size)

    def match(self, token_ids: Tokens, salt: str, step: int) -> Match:
        """Return how much of `token_ids` the tree has; change nothing."""
        if not self.prefix_caching:
            return Match(0, 0, 0, None, NO_PAGES, "")
        match = self.tree.match(token_ids, salt, step)
        if match.cause == "new" and self._prefilling[salt, token_ids[: self.page_size].tobytes()]:
            return replace(match, cause="in_flight")
        return match

    def nearest(self, token_ids: Tokens, salt: str, client: str) -> NearestPrefix:
        """Return the cached prompt nearest to `token_ids`, as far as `client` may know it; change nothing."""
        return self.tree.nearest(token_ids, salt, client)

    def admit(
        self,
        token_ids: Tokens,
        salt: str,
        match: Match,
        context: int,
        turn_boundary: int,
        branches: Sequence[int] = (),
        *,
        longest: int | None = None,
    ) -> SequenceAllocation | None:
        """Take slots and the pages of the first `context` tokens of a sequence that resumes at `match`.

        The result is None, and nothing changes, if no row is free or memory is short. The matched checkpoint
        is locked before anything is evicted (W8: eviction never takes the match). The first forward reads it
        in its own slot, and the lock ends with that forward's fence (O4).
        """
        if not self.batch.free:
            return None
        if match.node is not None:
            self.tree.lock(match.node, state=True)
        grant = self.reclaimer.allocate(
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
        ghost_match = None
        if self.ghosts is not None:
            ghost_match = self._observe_prompt(self.ghosts, token_ids, salt)
            if match.node is not None:
                self._expect_returns(self.ghosts, match.node, ghost_match)
        choice = CheckpointChoice(Placement((), ()))
        if self.prefix_caching:
            choice = self._chooser.choose(len(token_ids), ghost_match, match, turn_boundary, branches)
        live, *spare = grant.slots
        row = self.batch.add(live, match.resumable, longest)
        self.batch.state_seed[row] = token_ids[0]
        self.batch.append_pages(row, match.pages)
        self.batch.append_pages(row, grant.pages)
        allocation = SequenceAllocation(self.batch, row, salt, spare, choice.placement)
        allocation.ghost_match, allocation.worthwhile = ghost_match, choice.worthwhile
        if match.node is not None:
            allocation.node = allocation.match_node = match.node
            allocation.awaits_commit = True
            self.tree.touch(match.node)
        self.allocations[row] = allocation
        allocation.prefill_end = len(token_ids)
        if self.prefix_caching:
            allocation.first_page = token_ids[: self.page_size].tobytes()
            self._prefilling[salt, allocation.first_page] += 1
        return allocation

    def _observe_prompt(self, ghosts: GhostTree, token_ids: Tokens, salt: str) -> GhostMatch:
        """Record the prompt in the ghost tree, and weigh again the checkpoints that have aged with it."""
        match, aged = ghosts.observe(token_ids, salt)
        for ghost in aged:
            if ghost.node is not None:
                self.tree.eviction.offer(ghost.node)
        return match

    @property
    def _chooser(self) -> CheckpointChooser:
        return CheckpointChooser(
            self.tree, self.ghosts, self.track_interval, self.cap, self.min_checkpoint_depth,
            spare=self._slots_to_spare,
        )  # fmt: skip

    def _end_prefill(self, allocation: SequenceAllocation) -> None:
        """Record that the last piece of the prompt is launched: a later miss on it is not `in_flight`."""
        if allocation.first_page is None:
            return
        key, allocation.first_page = (allocation.salt, allocation.first_page), None
        self._prefilling[key] -= 1
        if self._prefilling[key] <= 0:
            del self._prefilling[key]

    def extend(self, allocation: SequenceAllocation, context: int) -> bool:
        """Take pages for the first `context` tokens; return False, and take none, if too few are free."""
        needed = self.pages_for(context) - allocation.page_count
        if needed <= 0:
            return True
        grant = self.reclaimer.allocate(AllocationSite.EXTEND, pages=needed)
        if grant is None:
            return False
        self.batch.append_pages(allocation.row, grant.pages)
        return True

    # --- checkpoints ---------------------------------------------------------------------------------

    def keep_checkpoint_at(self, allocation: SequenceAllocation, depth: int, *, forced: bool = False) -> None:
        """Plan a checkpoint at `depth`, whatever the cap is; others make room for a `forced` one."""
        allocation.awaited_depths.add(depth)
        allocation.forced_depths |= {depth} if forced else set()
        if (
            depth > allocation.depth
            and depth >= self.min_checkpoint_depth
            and depth not in allocation.placement.required
        ):
            placement = allocation.placement
            optional = tuple(other for other in placement.optional if other != depth)
            allocation.placement = Placement(tuple(sorted((*placement.required, depth))), optional)

    def plan_prefill(self, allocation: SequenceAllocation, stop: int, step: int) -> list[Checkpoint]:
        """Return the checkpoints, with slots, that `step` writes as it computes [allocation.depth, stop)."""
        if stop >= allocation.prefill_end:
            self._end_prefill(allocation)
        planned = []
        for depth in allocation.placement.required:
            if allocation.depth < depth <= stop:
                evict = self.strategy.evicts_for_checkpoints or depth in allocation.forced_depths
                slot = self._checkpoint_slot(allocation, evict=evict)
                planned.append((depth, slot))
        planned.extend(
            (depth, self._optional_slot(allocation, depth))
            for depth in allocation.placement.optional
            if allocation.depth < depth <= stop
        )
        checkpoints = []
        for depth, slot in sorted(planned):
            if not slot:
                self.counters.skipped += 1
                continue
            checkpoint = Checkpoint(depth, slot)
            allocation.pending.append(PendingCheckpoint(checkpoint, step, decode=False))
            allocation.awaits_commit = True
            self.arena.name_in_step(slot, step)
            checkpoints.append(checkpoint)
        return checkpoints

    def _optional_slot(self, allocation: SequenceAllocation, depth: int) -> int:
        """Return a slot for a track-interval checkpoint, free or of a less valuable state; 0 = none."""
        if self._slots_to_spare:
            return self._checkpoint_slot(allocation, evict=False)
        if not self.strategy.evicts_for_checkpoints:
            return 0
        return self._checkpoint_slot(allocation, evict=True) if depth in allocation.worthwhile else 0

    def _checkpoint_slot(self, allocation: SequenceAllocation, *, evict: bool) -> int:
        grant = self.reclaimer.allocate(AllocationSite.PREFILL_CHECKPOINT, tracking=1, evict=evict)
        return grant.slots[0] if grant is not None else 0

    def tracks_decode(self, depth: int, outputs: int) -> bool:
        """Return whether a sequence leaves a checkpoint at `depth`, with its `outputs`-th output token."""
        if not self.prefix_caching or depth % self.page_size:
            return False
        if not self.strategy.tracks_decode and not self._slots_to_spare:
            return False
        if depth < self.min_checkpoint_depth:
            return False
        spacing = decode_spacing(outputs, self.page_size, self.track_interval)
        return not depth % spacing or not depth % self.track_interval

    def decode_rows(self, rows: Ints) -> DecodeRows:
        """Return depth and needs of `rows` before they decode one more token; see `DecodeRows`."""
        batch, page_size = self.batch, self.page_size
        depth = batch.depth[rows]
        needs_page = (depth % page_size == 0) & (depth // page_size >= batch.page_count[rows])
        return DecodeRows(depth, needs_page, depth + 1 >= batch.last_depth[rows])

    def plan_decode(self, allocation: SequenceAllocation, outputs: int, step: int) -> int:
        """Return the slot to which the decode step to depth `allocation.depth + 1` also writes; 0 = none."""
        if not self.tracks_decode(allocation.depth + 1, outputs):
            return 0
        return self.take_decode_slot(allocation, step)

    def take_decode_slot(self, allocation: SequenceAllocation, step: int) -> int:
        """Take the slot for a decode checkpoint that is due; 0 = there is none."""
        slot = 0
        if allocation.spare:
            slot = allocation.spare.pop()
        elif self.strategy.borrows:
            # L2: outside the boundary window a lazy sequence holds one tracking slot.
            grant = self.reclaimer.allocate(AllocationSite.BORROW, tracking=1)
            slot = grant.slots[0] if grant is not None else 0
        elif not self.strategy.tracks_decode:
            # Without a buffer, the checkpoint takes a free slot, which is the tree's as soon as it is
            # written.
            slot = self._checkpoint_slot(allocation, evict=False)
        elif allocation.ready:
            slot = allocation.ready.pop(0).slot
            self.arena.move(slot, SlotState.TRACK_PENDING)
        if not slot:
            self.counters.skipped += 1
            return 0
        checkpoint = Checkpoint(allocation.depth + 1, slot)
        allocation.pending.append(PendingCheckpoint(checkpoint, step, decode=self.strategy.tracks_decode))
        allocation.awaits_commit = True
        self.arena.name_in_step(slot, step)
        return slot

    def launch(self, rows: int | Ints, depth: int | Ints, step: int) -> None:
        """Record that `step`, which is being launched, brings the live slots of `rows` to `depth` tokens."""
        self.batch.launch(rows, depth, step)

    # --- commit --------------------------------------------------------------------------------------

    def advance(self, step: int, *, failed: bool = False) -> None:
        """Record that `step` is complete: what waited for its end may be used or freed now."""
        if failed:
            # A sequence that left the batch before the failure was known donates nothing.
            self._retiring = [
                replace(retiring, token_ids=lambda: NO_TOKENS) if retiring.fence >= step else retiring
                for retiring in self._retiring
            ]
        self.arena.advance(step)
        if self.installs:
            self._complete_installs()

    def commit(self, allocation: SequenceAllocation, token_ids: Tokens, step: int) -> None:
        """Donate or keep the checkpoints of `allocation` that `step` has completed.

        `token_ids`: all known tokens of the sequence.
        """
        if allocation.match_node is not None:
            self.tree.unlock_state(allocation.match_node)
            allocation.match_node = None
        allocation.awaits_commit = False
        if not allocation.pending:
            return
        incomplete = []
        for pending in allocation.pending:
            if pending.step > step:
                incomplete.append(pending)
            else:
                self._complete(allocation, token_ids, pending, step)
        allocation.pending = incomplete
        allocation.awaits_commit = bool(incomplete)

    def _complete(
        self, allocation: SequenceAllocation, token_ids: Tokens, pending: PendingCheckpoint, step: int
    ) -> None:
        """Keep a complete checkpoint if its slot is one of the reserved tracking slots, or else donate it."""
        self.arena.move(pending.checkpoint.slot, SlotState.TRACK_READY)
        if pending.decode:
            self._keep_ready(allocation, pending.checkpoint)
        else:
            self._donate(allocation, token_ids, pending.checkpoint, step)

    def _keep_ready(self, allocation: SequenceAllocation, checkpoint: Checkpoint) -> None:
        allocation.ready.append(checkpoint)
        if self.strategy.borrows or len(allocation.ready) > max(1, self.strategy.tracking_slots):
            while len(allocation.ready) > 1:
                self.arena.free_slot(allocation.ready.pop(0).slot)

    def _donate(
        self, allocation: SequenceAllocation, token_ids: Tokens, checkpoint: Checkpoint, step: int
    ) -> None:
        self.donation.donate(allocation, token_ids, checkpoint, step, capped=not self._slots_to_spare)

    # --- retire --------------------------------------------------------------------------------------

    def retire(self, allocation: SequenceAllocation, token_ids: Callable[[], Tokens]) -> None:
        """End the sequence: free all its memory once its last launched step is complete.

        States deeper than `token_ids()` then (behind a stop string, or written by a step whose token was
        dropped) are not donated (L3, L4).
        """
        self._end_prefill(allocation)
        if allocation.last_step > self.arena.completed:
            self._retiring.append(RetiringSequence(allocation.last_step, allocation, token_ids))
        else:
            self._retire_now(allocation, token_ids())

    def release_retired(self) -> None:
        """Free the memory of retired sequences whose fence has passed. Called after the commits of a step."""
        if self._retiring:
            completed = self.arena.completed
            due = [retiring for retiring in self._retiring if retiring.fence <= completed]
            self._retiring = [retiring for retiring in self._retiring if retiring.fence > completed]
            for retiring in due:
                self._retire_now(retiring.allocation, retiring.token_ids())

    def discard_results(self, allocation: SequenceAllocation) -> None:
        """Donate nothing of the sequence, whose results are not finite, and drop its own checkpoints.

        The checkpoint it resumed from is dropped, too, unless a finite result has come of it.
        """
        unproven = allocation.match_node is not None
        allocation.untrusted_from = allocation.resumed + (0 if unproven else 1)

    def _retire_now(self, allocation: SequenceAllocation, token_ids: Tokens) -> None:
        step = allocation.last_step
        if allocation.match_node is not None:
            self.tree.unlock_state(allocation.match_node)
            allocation.match_node = None
        usable = min(len(token_ids), allocation.depth) if allocation.untrusted_from is None else 0
        if self.prefix_caching and usable:
            self._complete_retired(allocation, token_ids, usable)
        for pending in allocation.pending:
            self.arena.free_slot(pending.checkpoint.slot)
        allocation.pending = []
        if self.prefix_caching and step:
            self._donate_end(allocation, token_ids, usable)
        if allocation.live:
            self.arena.free_slot(allocation.live)
        for checkpoint in allocation.ready:
            self.arena.free_slot(checkpoint.slot)
        for slot in allocation.spare:
            self.arena.free_slot(slot)
        if self.arena.pages_per_slab:
            own = allocation.pages[self.arena.page_owner[allocation.pages] == PageOwner.SEQUENCE]
            self.arena.free_pages_of(own, 0, PageOwner.SEQUENCE)
        if allocation.node is not None:
            self.tree.unlock(allocation.node)
            if allocation.untrusted_from is not None:
                self._drop_untrusted(allocation.node, allocation.untrusted_from)
            if self.ghosts is not None:
                # The node's checkpoint may have been evicted meanwhile, and the ghost tree knows where
                # prompts diverge.
                self.reclaimer.drop_upwards(allocation.node)
        del self.allocations[allocation.row]
        self.batch.remove(allocation.row)

    def _complete_retired(self, allocation: SequenceAllocation, token_ids: Tokens, usable: int) -> None:
        """Complete the checkpoints of a sequence that left the batch before its last steps committed."""
        unusable = []
        for pending in allocation.pending:
            if pending.step > self.arena.completed or pending.checkpoint.depth > usable:
                unusable.append(pending)
            else:
                self._complete(allocation, token_ids, pending, pending.step)
        allocation.pending = unusable

    def _donate_end(self, allocation: SequenceAllocation, token_ids: Tokens, usable: int) -> None:
        """Give the tree the deepest state that ends a page, then the pages of the `usable` tokens."""
        is_deep_enough = usable >= self.min_checkpoint_depth
        is_live = allocation.depth == usable and not allocation.waiting
        if is_deep_enough and is_live and usable and usable % self.page_size == 0:
            live = allocation.live
            self.batch.live[allocation.row] = 0
            self._donate(allocation, token_ids, Checkpoint(usable, live), allocation.last_step)
        else:
            fitting = [checkpoint for checkpoint in allocation.ready if checkpoint.depth <= usable]
            if fitting:
                allocation.ready.remove(fitting[-1])
                self._donate(allocation, token_ids, fitting[-1], allocation.last_step)
        whole = usable // self.page_size * self.page_size
        if whole and self.ghosts is None:
            self.donation.insert(allocation, token_ids[:whole], 0, allocation.last_step)

    # --- upkeep --------------------------------------------------------------------------------------

    def account(self) -> LedgerAccount:
        """Return the numbers of slots and pages of each owner."""
        return ledger.account(self)

    def recount(self) -> Iterator[None]:
        """Count all slots and pages again in slices, and compare the result with the account."""
        return ledger.audit(self)

    def listen(self, listener: PrefixListener) -> None:
        """Report every change of the tree to `listener`."""
        self.tree.listener = listener

    def flush(self) -> int:
        """Forget every checkpoint that no sequence is reading; return their number."""
        matches = (allocation.match_node for allocation in self.allocations.values())
        return self.reclaimer.flush([node for node in matches if node is not None])

    @property
    def sweeping(self) -> bool:
        """Whether flushed checkpoints are still in memory."""
        return self.reclaimer.sweeping

    def sweep(self) -> None:
        """Free a few flushed checkpoints."""
        self.reclaimer.sweep()

    # --- change of settings --------------------------------------------------------------------------

    def change_settings(self, *, track_interval: int, cap: int, eviction: Policy) -> None:
        """Apply these settings from now on."""
        self.track_interval, self.cap = track_interval, cap
        self.change_eviction(eviction)

    def change_eviction(self, policy: Policy) -> None:
        """Evict by `policy` from now on. Nothing cached is lost; RecomputeCost starts with new counts."""
        eviction = self.tree.eviction
        if policy == eviction.policy:
            return
        for allocation in self.allocations.values():
            allocation.ghost_match = None
        for retiring in self._retiring:
            retiring.allocation.ghost_match = None
        for node in self.tree.walk():
            node.ghost = None
        eviction.policy = policy
        self.donation.ghosts = self._new_ghost_tree()
        eviction.change(policy)

    def change_strategy(self, strategy: Reservation) -> Refusal | None:
        """Run under `strategy` from the next step on, or return why this is not possible now.

        Running sequences get or give back tracking slots here, all or none; slots to which a launched step
        still writes follow at its commit.
        """
        slots, holders = strategy.tracking_slots, self.allocations.values()
        recipients = [each for each in holders for _ in range(slots - each.reserved)]
        grant = self.reclaimer.allocate(AllocationSite.STRATEGY, tracking=len(recipients))
        if grant is None:
            return Refusal(
                f"{strategy.name} needs {len(recipients)} more tracking slots for {len(self.allocations)} "
                f"running sequences; {self.arena.free_slots} are free and "
                f"{self.tree.evictable_slots} evictable, {sum(self._in_transit()[:3])} received or exported"
            )
        for allocation, slot in zip(recipients, grant.slots, strict=True):
            allocation.spare.append(slot)
        self.strategy = strategy
        for allocation in self.allocations.values():
            self._trim_tracking(allocation)
        return None

    def _trim_tracking(self, allocation: SequenceAllocation) -> None:
        """Free slots beyond the strategy's reservation: empty slots first, then the older checkpoints."""
        extra = allocation.reserved - self.strategy.tracking_slots
        while extra > 0 and allocation.spare:
            self.arena.free_slot(allocation.spare.pop())
            extra -= 1
        while extra > 0 and len(allocation.ready) > 1:
            self.arena.free_slot(allocation.ready.pop(0).slot)
            extra -= 1


def build_state_cache(
    batch: PersistentBatch,
    settings: CacheSettings,
    *,
    slabs: int,
    pages_per_slab: int,
    page_size: int,
    fault: AllocationFault | None = None,
) -> ManagedStateCache:
    """Return an empty cache that keeps its rows in `batch`. `slabs` counts the padding slab, too."""
    return RadixStateCache(
        Arena(slabs, pages_per_slab, fault),
        RadixTree(page_size, Eviction(settings.eviction), settings.fingerprint),
        batch,
        settings.strategy,
        track_interval=settings.track_interval,
        cap=settings.cap,
        prefix_caching=settings.prefix_caching,
        min_checkpoint_depth=settings.min_checkpoint_depth,
    )
