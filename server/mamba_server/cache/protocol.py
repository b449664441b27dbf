"""`StateCache`: the interface of a state cache. `mamba_server.cache` exports it and hides the rest.

These rules hold for all methods. The cache is pure: no clock, no device, one caller at a time, between two
launches. A shortage is a return value and never an exception: None or False means "not now", and then nothing
has changed. Only `LedgerViolation` is raised, where the caller or the cache broke an invariant. Memory that a
launched step names is free only after `advance` has passed that step, however it was returned.

A state leaves the arena between `export` and `end_export`, and comes in between `receive` and `install` or
`abandon`. Whoever reads or writes that memory is outside the forward stream, and no step says when it has
ended: the caller has to see its end, and says so. Drafts are no part of a launch: `replay` records at the
commit which of them were accepted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

import numpy as np

from mamba_planner.strategy import Reservation
from mamba_server.cache.eviction import Policy
from mamba_server.cache.node import (
    RECEIVED,
    Lineage,
    NearestPrefix,
    Node,
    Pages,
    Pin,
    PrefixListener,
    Provenance,
    Tokens,
)
from mamba_server.cache.persistent_batch import Bools, Ints
from mamba_server.cache.sequence_allocation import Checkpoint, ReplayRows, SequenceAllocation
from mamba_server.cache.tree import Match


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The settings that a cache uses now."""

    strategy: Reservation
    track_interval: int
    """Tokens between two checkpoints of a prompt or an answer."""
    cap: int
    """Most checkpoints that a prompt adds, and that a path keeps while slots are short."""
    eviction: Policy
    prefix_caching: bool = True
    min_checkpoint_depth: int = 0
    """Least depth of a checkpoint, in tokens."""
    fingerprint: str = ""
    """Fingerprint of the weights, tokenizer, dtype and layout whose states the cache holds; never changes."""

    @property
    def remembers_prompts(self) -> bool:
        """Whether the cache counts how often each prompt comes back, cached or not."""
        return self.prefix_caching and self.eviction == "RecomputeCost"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Says, with numbers, why a change was refused, for the person who requested it."""

    message: str


class Capacity(NamedTuple):
    """Snapshot of the memory of one cache: the arena, and what eviction could free.

    A tuple, since the scheduler takes a few of them in each step.
    """

    page_size: int
    """Tokens per page."""
    slabs: int
    """Slabs of the arena without the padding slab: each is one slot, or `pages_per_slab` pages."""
    pages_per_slab: int
    """Pages per slab; 0 = pages take no memory, as in a model without attention."""
    slots_per_sequence: int
    """Slots that the strategy in force reserves for a sequence, the live one included."""
    free_slots: int
    evictable_slots: int
    """Slots of checkpoints that nobody is reading."""
    free_pages: int
    evictable_pages: int
    """Pages of the tree that nobody uses."""
    available_pages: int
    """Pages that are free once everything unused is evicted; slabs of free slots count as pages."""
    checkpoints: int
    """Checkpoints in the tree."""
    admitted: int
    """Sequences that were admitted and have not ended or been preempted."""
    retiring: int
    """Sequences that have ended and whose memory is free after a later fence."""
    returning: bool
    """Whether a step in flight holds memory that is free, or can be evicted, after its fence."""
    accepts_checkpoints: bool
    """Whether a prefill that starts now can be expected to get slots for its checkpoints."""
    receiving: int
    """Receptions whose memory is being written, or whose bytes await their confirmation."""
    exported: int
    """Checkpoints that somebody outside the forward stream reads."""
    quarantined: int
    """Slots of receptions that were given up before anybody saw the end of their writers."""
    quarantined_pages: int
    """Pages of these receptions."""
    pinned: int = 0
    """Pinned checkpoints; they count as evictable, because they give way when nothing else is left."""

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold a sequence of `tokens` tokens."""
        return -(-tokens // self.page_size)

    def never_fits(self, tokens: int, slots_per_sequence: int | None = None) -> bool:
        """Return whether a sequence of `tokens` tokens would not even fit an otherwise empty arena.

        Quarantined memory does not count, because nobody knows when it is free. `slots_per_sequence`: slots
        under another strategy than the one in force.
        """
        slots = self.slots_per_sequence if slots_per_sequence is None else slots_per_sequence
        slabs = self.slabs - self.quarantined - slots
        pages = slabs * self.pages_per_slab - self.quarantined_pages
        return slabs < 0 or (self.pages_per_slab > 0 and self.pages_for(tokens) > pages)


@dataclass(frozen=True, slots=True)
class LedgerAccount:
    """Numbers of slots and pages by owner.

    `free` slots are free slabs, which could become pages instead.
    """

    slots_total: int
    slots_free: int
    slots_live: int
    slots_tracking: int
    slots_cached: int
    slots_fenced: int
    slots_receiving: int
    """Slots of receptions that are being written or await their confirmation."""
    slots_exported: int
    """Slots of checkpoints that somebody outside the forward stream reads. They are the tree's, but do not
    count in `slots_cached`."""
    slots_quarantined: int
    slabs_of_pages: int
    pages_free: int
    pages_sequence: int
    pages_tree: int
    pages_fenced: int
    pages_receiving: int
    pages_quarantined: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass(slots=True)
class CacheCounters:
    """Counts what happens to checkpoints, each counter one kind of event; the numbers only grow."""

    created: int = 0
    """Checkpoints that the tree took over, received ones included."""
    skipped: int = 0
    """Checkpoints that found no free slot."""
    evicted: int = 0
    duplicates: int = 0
    """Checkpoints that the tree already had."""
    quarantined: int = 0
    """Checkpoints that were withdrawn because they, or the checkpoints they were computed from, were
    wrong."""
    pins_given_up: int = 0
    """Pinned checkpoints that were evicted because nothing else was left."""


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """A checkpoint that is read outside the forward stream, and so is not evicted until `end_export`."""

    number: int
    """Number of the export, unique among the exports and receptions of a cache."""
    depth: int
    slot: int
    pages: Pages
    """Pages of [0, depth)."""


@dataclass(frozen=True, slots=True, eq=False)
class Reception:
    """Memory into which a checkpoint and its pages are written from outside the forward stream."""

    number: int
    """Number of the reception, unique among the exports and receptions of a cache."""
    token_ids: Tokens
    """Prefix whose state is received: exactly `depth` tokens."""
    salt: str
    depth: int
    base: int
    """Tokens whose pages the tree had already, so that they need not travel."""
    slot: int
    pages: Pages
    """Pages of [base, depth), to be written."""


class EvictedCheckpoint:
    """Describes a checkpoint of the tree: one that is about to be evicted, or one of a list of checkpoints.

    It is valid until the eviction listener returns, or until the next call that changes the cache.
    """

    __slots__ = ("_node",)

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def salt(self) -> str:
        return self._node.salt

    @property
    def depth(self) -> int:
        return self._node.depth

    @property
    def slot(self) -> int:
        """Slot that holds the state."""
        return self._node.slot

    @property
    def fence(self) -> int:
        """Last step that wrote the state; it is complete."""
        return self._node.produced_step

    def token_ids(self) -> Tokens:
        """Return the tokens of the whole prefix, a copy."""
        return np.concatenate([node.token_ids for node in self._node.path()])

    @property
    def pages(self) -> Pages:
        """Pages of [0, depth), a copy."""
        return np.concatenate([node.pages for node in self._node.path()])


EvictionListener = Callable[[EvictedCheckpoint], None]
"""Function that is called with each checkpoint before its memory is returned. It may read the memory, and
calls no method of the cache. Later launches may write the memory as soon as it returns: its reads are over,
or precede all later launches on the forward stream."""


class Quarantined(NamedTuple):
    """A checkpoint that was withdrawn because it is wrong; `lineage` is None if nobody recorded it."""

    token_ids: Tokens
    salt: str
    lineage: Lineage | None


class DecodeRows(NamedTuple):
    """Holds what the scheduler needs to know of rows before they decode; arrays in the order of the rows."""

    depth: Ints
    """Tokens in the live slot, and accepted drafts behind them."""
    needs_page: Bools
    """Whether the next token lies on a page that the row does not have, so that `extend` comes first."""
    last: Bools
    """Whether the next token is the last one that the sequence may sample."""


class StateCache(Protocol):
    """The cache of one device, as scheduler and core use it: it gives sequences memory and keeps states.

    The methods are in the order of their calls.
    """

    @property
    def settings(self) -> CacheSettings:
        """Settings in force."""

    @property
    def capacity(self) -> Capacity:
        """Memory at this moment. Any call that changes the cache makes the snapshot out of date."""

    @property
    def counters(self) -> CacheCounters:
        """Numbers of events since the start."""

    def match(self, token_ids: Tokens, salt: str, step: int) -> Match:
        """Return how much of a prompt, whose first piece `step` would compute, the tree has; read only.

        The result is not valid after `admit`.
        """

    def nearest(self, token_ids: Tokens, salt: str, client: str) -> NearestPrefix:
        """Return the cached prompt nearest to a prompt, to explain a miss; read only.

        The result has only as much of that prompt as `client` may know.
        """

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
        """Take slots and the pages of `context` tokens, evicting for them; lock the checkpoint of `match`.

        `turn_boundary` is the depth before the generation prompt; 0 = none. `branches` are depths at which
        waiting prompts diverge from this one. `longest` is the number of tokens that the sequence may grow
        to; None = unbounded. The result is None if memory is short.
        """

    def extend(self, allocation: SequenceAllocation, context: int) -> bool:
        """Take the pages that `context` tokens of the sequence need, evicting for them.

        The result is False if memory is short now; nothing is taken then. Called before the launch.
        """

    def keep_checkpoint_at(self, allocation: SequenceAllocation, depth: int, *, forced: bool = False) -> None:
        """Plan a checkpoint at `depth`, for which another prompt waits. Called during the prefill.

        `forced`: the checkpoint is to be pinned, so others are evicted for it under any strategy.
        """

    def plan_prefill(self, allocation: SequenceAllocation, stop: int, step: int) -> list[Checkpoint]:
        """Take slots for the checkpoints of a piece up to `stop`, before its launch.

        A shortage of slots yields fewer checkpoints.
        """

    def decode_rows(self, rows: Ints) -> DecodeRows:
        """Return depth and needs of `rows` before they decode one more token; read only."""

    def plan_decode(self, allocation: SequenceAllocation, outputs: int, step: int) -> int:
        """Take a slot for the state after the next token, which is output number `outputs`; return it.

        0 = no checkpoint is due, or there is no slot now. Called before the launch.
        """

    @property
    def replay(self) -> ReplayRows:
        """Record of drafts by row: how many may follow, where their inputs are kept, which were accepted."""

    def launch(self, rows: int | Ints, depth: int | Ints, step: int) -> None:
        """Record that `step`, which is launched next, brings the live slots of `rows` to `depth` tokens.

        The cache cannot refuse that.
        """

    def advance(self, step: int, *, failed: bool = False) -> None:
        """Record that `step` is complete, in the order of launches, and free the memory that waited for it.

        `failed`: the device failed, so nothing that the step wrote is kept. Called before the commits of the
        step's sequences.
        """

    def commit(self, allocation: SequenceAllocation, token_ids: Tokens, step: int) -> None:
        """Give the checkpoints that `step` wrote for the sequence to the tree.

        `token_ids`: all known tokens. Needed only while `allocation.awaits_commit`.
        """

    def release_retired(self) -> None:
        """Free the memory of retired sequences whose last step is complete.

        Called after the commits of a step.
        """

    def retire(self, allocation: SequenceAllocation, token_ids: Callable[[], Tokens]) -> None:
        """End the sequence, at any time; `allocation` is not used again.

        `token_ids()` is called once the last launched step is complete. It returns the prompt and the answer,
        without tokens behind a stop string; their states and pages go to the tree.
        """

    def discard_results(self, allocation: SequenceAllocation) -> None:
        """Drop everything that was computed for the sequence, from the tree, too; called before it ends."""

    # States that leave the cache or come in belong to no sequence; these calls may come at any time.

    def export(self, token_ids: Tokens, salt: str, step: int, *, most: int | None = None) -> Export | None:
        """Lock the deepest checkpoint of the prefix, so that it can be read outside the forward stream.

        Only a checkpoint whose writes were seen complete is exported. `step`: the next step to launch.
        `most`: greatest depth, in tokens. The result is None if there is no such checkpoint.
        """

    def end_export(self, export: Export) -> None:
        """Record that the reader has ended: the checkpoint can be evicted again."""

    def receive(self, token_ids: Tokens, salt: str) -> Reception | None:
        """Take memory for the state of `token_ids`, whole pages, evicting for it; a writer may fill it now.

        The pages that the tree has of the prefix stay until the reception has ended. The result is None if
        memory is short, or if the tree has the checkpoint or would not keep it.
        """

    def confirm(self, reception: Reception) -> None:
        """Record that all bytes of a reception are in memory, and that its writer was seen to end."""

    def install(self, reception: Reception, step: int, provenance: Provenance = RECEIVED) -> bool:
        """Give a confirmed reception, whose bytes are known to be right, to the tree; end the reception.

        Return False if the tree got the same checkpoint meanwhile; the memory is then returned. `provenance`
        says where the state comes from. Steps from `step` on resume from the state.

        A copy to the slot and the pages on the forward stream belongs to launch `step - 1`: it is launched
        before this call, and `advance` passes that number once it is complete. Other steps may read the copy
        by then, so a copy that fails has to be treated as a failure of the device. A caller that wants to
        avoid this installs only once it has seen the copy complete.
        """

    def abandon(self, reception: Reception, *, writer_ended: bool) -> None:
        """End a reception without a result: its memory is free at once if the end of its writer was seen.

        Otherwise the memory is quarantined until `writer_ended`.
        """

    def writer_ended(self, reception: Reception) -> None:
        """Record that the end of the writer of an abandoned reception was seen: its memory is free."""

    def pin(self, token_ids: Tokens, salt: str, step: int, *, depth: int) -> Pin | None:
        """Keep the checkpoint at `depth` of a prompt until `unpin`, as long as others are left to evict.

        If there is no checkpoint at `depth`, the next deeper one is pinned, or else the next shallower.
        Several holders may pin one checkpoint. A pin whose `node` is None has ended: its checkpoint was
        flushed, or was evicted for a sequence. `step` is the next step to launch. The result is None if the
        prompt has no complete checkpoint.
        """

    def unpin(self, pin: Pin) -> None:
        """Release the pin for one of its holders."""

    def on_eviction(self, listener: EvictionListener | None) -> None:
        """Call `listener`, the only one, before each eviction of a checkpoint; None = report none.

        Flushed checkpoints are not reported.
        """


class ManagedStateCache(StateCache, Protocol):
    """A state cache with the upkeep that the engine does between two steps: audits, flushes, settings."""

    def admit_audit(self, token_ids: Tokens, salt: str) -> SequenceAllocation | None:
        """Take a slot and all pages for computing `token_ids` once more from the beginning.

        No checkpoint that a sequence has resumed from is evicted for it. `retire` returns the memory, and
        nobody gets the result. The result of the call is None if memory is short.
        """

    def slot_of(self, token_ids: Tokens, salt: str, lineage: Lineage) -> int:
        """Return the slot of a prefix's complete checkpoint if it has `lineage`, otherwise 0; read only."""

    def quarantine(self, token_ids: Tokens, salt: str) -> list[Quarantined]:
        """Withdraw the checkpoint of a prefix, which is wrong, and all that continue it; return them."""

    @property
    def condemned(self) -> int:
        """Number of quarantined checkpoints that somebody still reads."""

    def release_condemned(self) -> None:
        """Free the quarantined checkpoints that nobody reads any more. Called between two steps."""

    def account(self) -> LedgerAccount:
        """Return the numbers of slots and pages of each owner; read only."""

    def recount(self) -> Iterator[None]:
        """Compare the account with the holders, in slices; not valid after any other call; read only.

        Raises LedgerViolation.
        """

    def listen(self, listener: PrefixListener) -> None:
        """Report every change of the tree to `listener`, the only one, from now on."""

    def checkpoints(self) -> Iterator[EvictedCheckpoint]:
        """Yield every checkpoint that can be resumed; not valid after any other call; read only."""

    def hottest(self, count: int) -> list[EvictedCheckpoint]:
        """Return the checkpoints that are evicted last, at most `count`, the most valuable first; read only.

        They are not valid after any other call.
        """

    def flush(self) -> int:
        """Forget every checkpoint that no sequence is reading; return their number."""

    @property
    def sweeping(self) -> bool:
        """Whether flushed checkpoints are still in memory."""

    def sweep(self) -> None:
        """Free a few checkpoints that a flush has forgotten; may be called at any time while `sweeping`."""

    def change_strategy(self, strategy: Reservation) -> Refusal | None:
        """Run under `strategy` from the next step on; running sequences get or give back tracking slots.

        A Refusal means "not now": nothing has changed.
        """

    def change_settings(self, *, track_interval: int, cap: int, eviction: Policy) -> None:
        """Apply these settings, which take no memory, from now on. Cannot be refused."""
