"""Memory that an admitted sequence holds besides its row (slots, checkpoints, locks), and its drafts."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mamba_server.cache.arena import Pages
from mamba_server.cache.ghost_tree import GhostMatch
from mamba_server.cache.node import Lineage, Node, Provenance, Tokens
from mamba_server.cache.persistent_batch import Ints, PersistentBatch
from mamba_server.cache.placement import Placement


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A depth of a sequence, and the slot that holds, or will hold, the state there."""

    depth: int
    slot: int


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that launched step `step` writes: it is complete when that step commits, not before."""

    checkpoint: Checkpoint
    step: int
    decode: bool
    """Whether the slot is a tracking slot that the strategy reserves for decoding, so that the sequence keeps
    the complete checkpoint; otherwise the tree gets it."""


class SequenceAllocation:
    """The memory that one admitted sequence holds; `row` is its row of `batch`."""

    __slots__ = (
        "_batch",
        "awaited_depths",
        "awaits_commit",
        "client",
        "first_page",
        "forced_depths",
        "ghost_match",
        "lineage",
        "match_node",
        "node",
        "pending",
        "placement",
        "prefill_end",
        "ready",
        "resumed",
        "row",
        "salt",
        "spare",
        "untrusted_from",
        "worthwhile",
        "writer",
    )

    def __init__(
        self, batch: PersistentBatch, row: int, salt: str, spare: list[int], placement: Placement
    ) -> None:
        self._batch = batch
        self.row = row
        self.salt = salt
        self.first_page: bytes | None = None
        """Tokens of the first page while the prompt counts as being computed; None = no longer."""
        self.prefill_end = 0
        """Tokens to compute before the sequence decodes."""
        self.spare = spare
        """Empty tracking slots."""
        self.ready: list[Checkpoint] = []
        """Complete checkpoints in tracking slots, shallowest first."""
        self.pending: list[PendingCheckpoint] = []
        self.awaits_commit = False
        """Whether the commit of a launched step changes anything: `pending` or `match_node` is set. A field,
        because each sampled token reads it."""
        self.placement = placement
        self.worthwhile: frozenset[int] = frozenset()
        """Optional depths at which a checkpoint is worth more than the states it would evict."""
        self.awaited_depths: set[int] = set()
        """Depths at which deferred prompts wait for a state of this sequence."""
        self.forced_depths: set[int] = set()
        """Depths of pins: their checkpoints get slots even if other checkpoints are evicted for them."""
        self.ghost_match: GhostMatch | None = None
        """Part of the ghost tree that the prompt begins with; None = the cache does not remember prompts."""
        self.node: Node | None = None
        """Deepest tree node whose pages this sequence uses (it holds the page lock)."""
        self.match_node: Node | None = None
        """Checkpoint that the first forward reads; its state is locked until that forward's fence."""
        self.writer = ""
        """Identifier of the sequence's request; "" = it has none."""
        self.client: str | None = None
        """Client that sent the request; None = unknown."""
        self.lineage: Lineage | None = None
        """Lineage of the checkpoint from which the sequence resumed; None = it resumed from none."""
        self.untrusted_from: int | None = None
        """Depth from which its checkpoints in the tree must not be resumed; None = all are valid."""
        self.resumed = self.depth
        """Tokens resumed from a checkpoint instead of computed."""

    # --- row ----------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of tokens in the live slot's state once all launched steps end, and of accepted drafts."""
        return int(self._batch.depth[self.row])

    @property
    def waiting(self) -> int:
        """Number of accepted drafts, or tokens of a ring, whose inputs are not in the live slot yet."""
        return int(self._batch.waiting[self.row])

    @property
    def lane(self) -> int:
        """Number of the lane, the buffer that holds the inputs that the live slot lacks; -1 = none."""
        return int(self._batch.lane[self.row])

    @property
    def last_step(self) -> int:
        """Number of the last launched step that computes tokens of the sequence; 0 = none yet."""
        return int(self._batch.last_step[self.row])

    @property
    def live(self) -> int:
        """Live slot; 0 once it has been donated."""
        return int(self._batch.live[self.row])

    @property
    def page_count(self) -> int:
        """Number of pages of the sequence, its own and the tree's."""
        return int(self._batch.page_count[self.row])

    @property
    def pages(self) -> Pages:
        """Page ids in the order of the tokens: a view of the row, no copy."""
        return self._batch.pages[self.row, : self.page_count]

    @property
    def decodes(self) -> bool:
        """Whether another token may be sampled after the one of the last launched step."""
        return self.depth < int(self._batch.last_depth[self.row])

    def replace_pages(self, pages: Pages) -> None:
        """Replace the first pages by `pages`, which hold the same keys and values."""
        self._batch.replace_pages(self.row, pages)

    @property
    def slot_in(self) -> int:
        """Slot that the next forward reads: at first a checkpoint's, or -1 for zeros; later the live slot."""
        if self.last_step:
            return self.live
        return self.match_node.slot if self.match_node is not None else -1

    # --- prefix -------------------------------------------------------------------------------------

    def own_pages(self, page_size: int) -> int:
        """Return the number of pages that only this sequence uses: they are free once it is gone."""
        node = self.node
        while node is not None and node.kv_lock == 1:
            node = node.parent
        return self.page_count - (node.depth // page_size if node is not None else 0)

    @property
    def seen_pages(self) -> int:
        """Pages of the prompt that an earlier prompt began with, cached or not.

        0 where the cache does not remember prompts.
        """
        return self.ghost_match.shared if self.ghost_match is not None else 0

    # --- checkpoints --------------------------------------------------------------------------------

    def pending_depths(self) -> list[int]:
        """Return the depths of the checkpoints that launched steps are writing for the tree."""
        return [pending.checkpoint.depth for pending in self.pending if not pending.decode]

    def coming_depths(self) -> list[int]:
        """Return the depths of the checkpoints for the tree that are planned or being written."""
        planned = [depth for depth in self.placement.depths if depth > self.depth]
        return planned + self.pending_depths()

    # --- lineage ------------------------------------------------------------------------------------

    def begin_lineage(self, request_id: str, client: str | None = None) -> None:
        """Record which request runs in the row, and count the resumption of the matched checkpoint."""
        self.writer, self.client = request_id, client
        if self.match_node is not None and self.match_node.lineage is not None:
            self.lineage = self.match_node.lineage
            self.lineage.resumed += 1

    def lineage_at(self, depth: int, step: int) -> Lineage:
        """Return the lineage of a checkpoint at `depth` that `step` wrote for the sequence."""
        return Lineage(Provenance("device", self.writer), depth, step, self.lineage)

    # --- slots --------------------------------------------------------------------------------------

    @property
    def reserved(self) -> int:
        """Number of tracking slots under the strategy's reservation.

        Slots for prefill checkpoints do not count.
        """
        return len(self.spare) + len(self.ready) + sum(pending.decode for pending in self.pending)

    @property
    def tracking_slots(self) -> list[int]:
        """All slots of the sequence except the live one."""
        ready = [checkpoint.slot for checkpoint in self.ready]
        return self.spare + ready + [pending.checkpoint.slot for pending in self.pending]


@dataclass(frozen=True, slots=True)
class RetiringSequence:
    """A sequence that has ended, and whose memory is free after step `fence`.

    `token_ids()` then returns the prompt and the answer, without tokens behind a stop string.
    """

    fence: int
    allocation: SequenceAllocation
    token_ids: Callable[[], Tokens]


class ReplayRows:
    """Keeps track of the drafts of the rows of `batch`, for the state cache that owns the rows.

    A draft is a proposed token that the next step checks. It does not change a row's state: the step that
    checks it keeps the raw inputs of its layers in a lane, a buffer of the row. The inputs of accepted drafts
    stay there until the next launch of the row computes them into the state. Drafts end before a depth at
    which the sequence leaves a checkpoint, so a checkpoint is read from a live slot that lacks no token.

    `tracks(depth, outputs)` returns whether a sequence leaves a checkpoint at `depth`; `extend` takes pages,
    as the cache does.
    """

    def __init__(
        self,
        batch: PersistentBatch,
        page_size: int,
        tracks: Callable[[int, int], bool],
        extend: Callable[[SequenceAllocation, int], bool],
    ) -> None:
        self._batch, self._page_size, self._tracks, self._extend = batch, page_size, tracks, extend

    def room(self, allocation: SequenceAllocation, prompt_len: int, most: int) -> int:
        """Return how many of `most` drafts may follow the next token, and take the pages that they need.

        Called before the launch. No draft reaches a checkpoint of the sequence, or a token that it may not
        sample any more; where pages are short, drafts end with the pages that there are. The result is 0,
        too, if no lane is free.
        """
        first, size = allocation.depth + 1, self._page_size
        last = min(first + most, int(self._batch.last_depth[allocation.row]))
        for boundary in range(first // size * size + size, last + 1, size):
            if self._tracks(boundary, boundary - prompt_len):
                last = boundary - 1
                break
        if last > first and not self._extend(allocation, last):
            last = min(last, allocation.page_count * size)
        if last <= first or not self._batch.take_lane(allocation.row):
            return 0
        return last - first

    @property
    def idle(self) -> bool:
        """Whether no row holds a lane, so that no inputs are kept in one."""
        return self._batch.free_lanes == self._batch.lanes

    def waiting(self, rows: Ints) -> Ints:
        """Return the number of accepted drafts of each of `rows` that its live slot lacks."""
        return self._batch.waiting[rows]

    def holders(self, rows: Ints) -> list[int]:
        """Return the indices in `rows` of the rows that hold a lane."""
        places: list[int] = np.flatnonzero(self._batch.lane[rows] >= 0).tolist()
        return places

    def release(self, row: int) -> None:
        """Free the lane of `row`, whose step has no drafts and computes the lane's inputs into the state."""
        self._batch.return_lane(row)

    def accept(self, allocation: SequenceAllocation) -> None:
        """Record at the commit that the row's next draft was right: its inputs stay in the lane."""
        self._batch.depth[allocation.row] += 1
        self._batch.waiting[allocation.row] += 1

    def materialised(self, allocation: SequenceAllocation) -> None:
        """Record that the inputs in the row's lane were computed into the live slot outside a step."""
        self._batch.waiting[allocation.row] = 0
