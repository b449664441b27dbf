"""Owner of the cache's memory: slabs, each of which serves as one state slot or as P pages.

An allocation is all or nothing, and a shortage raises nothing. Memory that is given back stays fenced until
the last step that names it has completed. The state cache is the only caller; the arena knows neither
sequences nor the tree. A call that breaks an invariant raises LedgerViolation.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from mamba_server.cache.errors import LedgerViolation
from mamba_server.cache.slot_state import SlotState, check_transition

Pages = npt.NDArray[np.int32]


class AllocationSite(Enum):
    """Purpose of an allocation, by which tests choose the allocations that are to fail."""

    ADMIT = "admit"
    """Live slot, tracking slots and first pages of a sequence."""
    EXTEND = "extend"
    """Pages for the next tokens of a running sequence."""
    PREFILL_CHECKPOINT = "prefill_checkpoint"
    BORROW = "borrow"
    """Second tracking slot of a sequence under ExtraBufferLazy, while a step writes a checkpoint to it."""
    STRATEGY = "strategy"
    """Additional tracking slots for a running sequence after a change of strategy."""
    RECEIVE = "receive"
    """Slot and pages that a writer outside the forward stream fills."""
    AUDIT = "audit"
    """Slot and pages for computing an answer once more."""


class PageOwner:
    """Says who owns a page, as one byte in the arena's account of pages."""

    FREE = 0
    SEQUENCE = 1
    TREE = 2
    FENCED = 3
    PADDING = 4
    TRANSFER = 5
    """The page belongs to a reception: it is being filled, or its contents are not in the tree yet."""
    QUARANTINED = 6
    """The page belongs to a reception that was given up before anybody saw the end of its writer."""


PAGE_OWNERS = 7


@dataclass(frozen=True, slots=True)
class Allocation:
    """The slots and pages that one call of `allocate` took for its caller."""

    slots: tuple[int, ...]
    """Slots, the live ones first."""
    pages: Pages


_UNEVICTABLE = (PageOwner.SEQUENCE, PageOwner.FENCED, PageOwner.TRANSFER, PageOwner.QUARANTINED)
"""Owners whose pages eviction cannot free."""
_FREE, _SLOT, _PAGES, _PADDING = 0, 1, 2, 3
SLABS_PER_SLICE = 512
"""Slabs or nodes that a check examines before it yields."""
PAGES_PER_SLICE = 1 << 16
"""Pages that a check counts in one numpy call before it yields."""
NO_PAGES: Pages = np.empty(0, np.int32)


class Arena:
    """Slots and pages over `slabs` slabs of equal size; slab n serves as slot n or as P pages.

    P is `pages_per_slab`; the pages of slab n have the ids n * P to n * P + P - 1. With P = 0 (a pure
    recurrent model) pages take no memory: every page id is 0. `fail` returns whether an allocation is to
    fail, for tests.
    """

    def __init__(
        self, slabs: int, pages_per_slab: int, fail: Callable[[AllocationSite], bool] | None = None
    ) -> None:
        self.slabs = slabs
        self.pages_per_slab = pages_per_slab
        self.completed = 0
        """Number of the last step whose work on the device is complete."""
        self._fail = fail
        self._role = [_PADDING] + [_FREE] * (slabs - 1)
        self._free_slabs = list(range(slabs - 1, 0, -1))
        self._slot_state = [SlotState.FREE] * slabs
        self._slot_fence = [0] * slabs
        self.slots_by_state = dict.fromkeys(SlotState, 0)
        """Number of slots in each state except FREE."""
        self._free_pages: list[list[int]] = [[] for _ in range(slabs)]
        self._partial: list[tuple[int, int]] = []
        self._partial_free = 0
        self.page_owner = np.zeros(max(1, slabs * pages_per_slab), np.int8)
        self.page_owner[: max(1, pages_per_slab)] = PageOwner.PADDING
        self.pages_by_owner = [0] * PAGE_OWNERS
        """Number of pages of each owner except FREE."""
        self.pages_by_owner[PageOwner.PADDING] = max(1, pages_per_slab)
        self._kept = [0] * slabs
        """For each slab, the number of its pages that are in use or that eviction cannot free."""
        self._kept_slabs = 0
        """Number of slabs whose entry in `_kept` is not 0."""
        self._fenced_slots: list[tuple[int, int]] = []
        self._fenced_pages: list[tuple[int, Pages]] = []
        self._writers: dict[int, tuple[int, Pages]] = {}
        """Slot and pages of each writer outside the forward stream whose end nobody has seen.

        The key is the number of its reception.
        """
        self._slot_writer: dict[int, int] = {}
        """For each slot of such a writer, the number of its reception."""

    # --- capacity ------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """Number of slabs that can become slots now, without an eviction."""
        return len(self._free_slabs)

    @property
    def free_pages(self) -> int:
        """Number of pages that can be allocated now, without an eviction; 0 for a pure recurrent model."""
        return self._partial_free + len(self._free_slabs) * self.pages_per_slab

    @property
    def emptiable_slabs(self) -> int:
        """Number of slabs that are free, or that become so when all unused pages of the tree are freed."""
        return self.slabs - 1 - sum(self.slots_by_state.values()) - self._kept_slabs

    @property
    def partial_pages(self) -> int:
        """Number of free pages in slabs that already hold pages."""
        return self._partial_free

    @property
    def has_fenced(self) -> bool:
        """Whether returned memory waits for a fence, so that a later step has more memory."""
        return bool(self._fenced_slots or self._fenced_pages)

    def slot_state(self, slot: int) -> SlotState:
        return self._slot_state[slot]

    def fits(self, slots: int, pages: int) -> bool:
        """Return whether `allocate` would succeed now."""
        spare = len(self._free_slabs) - slots
        if spare < 0:
            return False
        return not self.pages_per_slab or pages <= self._partial_free + spare * self.pages_per_slab

    # --- allocate ------------------------------------------------------------------------------------

    def allocate(
        self, site: AllocationSite, *, live: int = 0, tracking: int = 0, pages: int = 0, writer: int = 0
    ) -> Allocation | None:
        """Take slots (`live` ones first) and pages; return None, and change nothing, if too few are free.

        `site` is the purpose of the allocation. `writer` is the number of the reception that gets one slot
        and the pages; 0 = a sequence gets the memory. The result is also None if a test makes the allocation
        fail.
        """
        if self._fail is not None and self._fail(site):
            return None
        count = live + tracking + (writer > 0)
        if not self.fits(count, pages):
            return None
        slots = tuple(self._free_slabs.pop() for _ in range(count))
        for index, slot in enumerate(slots):
            self._role[slot] = _SLOT
            if writer:
                self.move(slot, SlotState.RECEIVING)
            else:
                self.move(slot, SlotState.LIVE if index < live else SlotState.TRACK_PENDING)
        grant = Allocation(
            slots, self._take_pages(pages, PageOwner.TRANSFER if writer else PageOwner.SEQUENCE)
        )
        if writer:
            self._writers[writer] = slots[0], grant.pages
            self._slot_writer[slots[0]] = writer
        return grant

    def _take_pages(self, count: int, owner: int) -> Pages:
        if not self.pages_per_slab or not count:
            return np.zeros(count, np.int32)
        out: list[int] = []
        while len(out) < count:
            # Pages come from the fullest slab first, so that other slabs become empty and can change their
            # role.
            slab = self._fullest_partial()
            if slab < 0:
                slab = self._free_slabs.pop()
                self._role[slab] = _PAGES
                first = slab * self.pages_per_slab
                self._free_pages[slab] = list(range(first + self.pages_per_slab - 1, first - 1, -1))
                self._partial_free += self.pages_per_slab
            free = self._free_pages[slab]
            count_taken = min(count - len(out), len(free))
            out.extend(free[-1 : -count_taken - 1 : -1])
            del free[-count_taken:]
            self._partial_free -= count_taken
            if free:
                heapq.heappush(self._partial, (len(free), slab))
        pages = np.array(out, np.int32)
        self._count_users(pages, PageOwner.FREE, owner)
        return pages

    def _fullest_partial(self) -> int:
        while self._partial:
            free, slab = heapq.heappop(self._partial)
            # An entry is stale once pages have come back; their return pushed the true count.
            if self._role[slab] == _PAGES and len(self._free_pages[slab]) == free:
                return slab
        return -1

    # --- transfer --------------------------------------------------------------------------------

    def move(self, slot: int, state: SlotState, fence: int = 0) -> None:
        """Move `slot` to `state` along the life-cycle table; `fence`: last step that names the slot."""
        fence = max(fence, self._slot_fence[slot])
        before = self._slot_state[slot]
        writer = self._slot_writer.get(slot, 0) if self._slot_writer else 0
        check_transition(slot, before, state, fence=fence, completed=self.completed, writer=writer)
        if before is not SlotState.FREE:
            self.slots_by_state[before] -= 1
        if state is not SlotState.FREE:
            self.slots_by_state[state] += 1
        self._slot_state[slot] = state
        self._slot_fence[slot] = fence

    def name_in_step(self, slot: int, step: int) -> None:
        """Record that launched step `step` uses `slot`.

        Moves of the slot that need the fence of a step are not allowed before this step is complete.
        """
        self._slot_fence[slot] = max(self._slot_fence[slot], step)

    def give_pages_to_tree(self, pages: Pages, owner: int = PageOwner.SEQUENCE) -> None:
        """Make the tree the owner of `pages`, which belonged to `owner`."""
        if self.pages_per_slab:
            self._expect(pages, owner)
            if self._writers:
                self._expect_no_writer(pages, owner)
            self._count_users(pages, owner, PageOwner.TREE)

    def quarantine_pages(self, pages: Pages) -> None:
        """Record that the reception of `pages` was given up before the end of its writer was seen."""
        if self.pages_per_slab:
            self._expect(pages, PageOwner.TRANSFER)
            self._count_users(pages, PageOwner.TRANSFER, PageOwner.QUARANTINED)

    def end_writer(self, writer: int) -> None:
        """Record that the end of the writer of reception `writer` was seen: it writes no more."""
        if writer not in self._writers:
            raise LedgerViolation(f"T3: the writer of reception {writer} ended twice, or never began")
        slot, _ = self._writers.pop(writer)
        del self._slot_writer[slot]

    def open_writers(self) -> set[int]:
        """Return the numbers of the receptions whose writers may still write."""
        return set(self._writers)

    def _count_users(self, pages: Pages, old_owner: int, new_owner: int) -> None:
        self.page_owner[pages] = new_owner
        self.pages_by_owner[old_owner] -= len(pages)
        self.pages_by_owner[new_owner] += len(pages)
        change = (new_owner in _UNEVICTABLE) - (old_owner in _UNEVICTABLE)
        if change:
            self.pin(pages, change)

    def pin(self, pages: Pages, change: int) -> None:
        """Add `change` (1 or -1) to the number of users of each of `pages`; used pages are not evicted."""
        if not self.pages_per_slab:
            return
        kept, slabs = self._kept, (pages // self.pages_per_slab).tolist()
        # A Python loop: for the few pages that change hands at a time, numpy takes longer to start than this
        # loop to end.
        if change > 0:
            for slab in slabs:
                if not kept[slab]:
                    self._kept_slabs += 1
                kept[slab] += change
        else:
            for slab in slabs:
                kept[slab] += change
                if not kept[slab]:
                    self._kept_slabs -= 1

    # --- free ---------------------------------------------------------------------------------------

    def free_slot(self, slot: int, fence: int = 0) -> None:
        """Give `slot` back; it is free once step `fence` and every step that names it are complete."""
        self.move(slot, SlotState.FENCED, fence)
        if self._slot_fence[slot] > self.completed:
            self._fenced_slots.append((self._slot_fence[slot], slot))
        else:
            self._return_slot(slot)

    def free_pages_of(self, pages: Pages, fence: int, owner: int) -> None:
        """Give back `pages`, which belong to `owner`; they are free once step `fence` is complete."""
        if not self.pages_per_slab or not len(pages):
            return
        self._expect(pages, owner)
        if self._writers:
            self._expect_no_writer(pages, owner)
        if fence > self.completed:
            self._count_users(pages, owner, PageOwner.FENCED)
            self._fenced_pages.append((fence, pages))
        else:
            self._return_pages(pages, owner)

    def advance(self, completed: int) -> None:
        """Record that step `completed` is complete, and free the memory that waited for it."""
        self.completed = max(self.completed, completed)
        if self._fenced_slots:
            waiting = []
            for fence, slot in self._fenced_slots:
                if fence > self.completed:
                    waiting.append((fence, slot))
                    continue
                self._return_slot(slot)
            self._fenced_slots = waiting
        if self._fenced_pages:
            waiting_pages = []
            for fence, pages in self._fenced_pages:
                if fence > self.completed:
                    waiting_pages.append((fence, pages))
                else:
                    self._return_pages(pages, PageOwner.FENCED)
            self._fenced_pages = waiting_pages

    def _return_slot(self, slot: int) -> None:
        self.move(slot, SlotState.FREE)
        self._slot_fence[slot] = 0
        self._role[slot] = _FREE
        self._free_slabs.append(slot)

    def _return_pages(self, pages: Pages, owner: int) -> None:
        self._count_users(pages, owner, PageOwner.FREE)
        touched: set[int] = set()
        for page in pages.tolist():
            slab = page // self.pages_per_slab
            self._free_pages[slab].append(page)
            touched.add(slab)
        self._partial_free += len(pages)
        for slab in touched:
            free = self._free_pages[slab]
            if len(free) == self.pages_per_slab:
                self._free_pages[slab] = []
                self._partial_free -= self.pages_per_slab
                self._role[slab] = _FREE
                self._free_slabs.append(slab)
            else:
                heapq.heappush(self._partial, (len(free), slab))

    def _expect(self, pages: Pages, owner: int) -> None:
        owners = self.page_owner[pages].tobytes()
        if owners.count(owner) != len(owners):
            wrong = pages[self.page_owner[pages] != owner]
            raise LedgerViolation(
                f"W1: page {int(wrong[0])} belongs to {int(self.page_owner[wrong[0]])}, expected {owner}"
            )

    def _expect_no_writer(self, pages: Pages, owner: int) -> None:
        """Raise LedgerViolation if a page leaves its reception while the writer may still write to it."""
        if owner < PageOwner.TRANSFER:
            return
        for writer, (_, written) in self._writers.items():
            if np.isin(pages, written).any():
                raise LedgerViolation(
                    f"T3: a page of owner {owner} left reception {writer} before the end of its writer"
                )

    # --- checks --------------------------------------------------------------------------------------

    def slots_of(self, slabs: range) -> Iterator[tuple[int, SlotState]]:
        """Yield the slots among `slabs`, each with its state."""
        for slab in slabs:
            if self._role[slab] == _SLOT:
                yield slab, self._slot_state[slab]

    def check_slabs(self) -> Iterator[None]:
        """Check that roles, free lists, counters and page owners agree (W5: the sums are the capacity).

        The check is complete when the iterator is exhausted; each item is one slice. Raises LedgerViolation.
        """
        roles, listed = self._role.count(_FREE), np.zeros(self.slabs, np.int8)
        for first in range(0, len(self._free_slabs), SLABS_PER_SLICE):
            listed[self._free_slabs[first : first + SLABS_PER_SLICE]] = 1
            yield
        if roles != len(self._free_slabs) or int(np.count_nonzero(listed)) != roles:
            raise LedgerViolation(f"W5: {roles} free slabs, {len(self._free_slabs)} on the free list")
        partial_free = 0
        states = dict.fromkeys(SlotState, 0)
        owners_by_slab = self.page_owner.reshape(self.slabs if self.pages_per_slab else 1, -1)
        free_pages: list[int] = []
        for slab in range(1, self.slabs):
            if slab % SLABS_PER_SLICE == 1:
                yield
                free_pages = np.count_nonzero(
                    owners_by_slab[slab : slab + SLABS_PER_SLICE] == PageOwner.FREE, axis=1
                ).tolist()
            if self._role[slab] == _PAGES:
                count = len(self._free_pages[slab])
                partial_free += count
                if free_pages[(slab - 1) % SLABS_PER_SLICE] != count:
                    raise LedgerViolation(f"W5: slab {slab} has {count} free pages, account differs")
                if count == self.pages_per_slab:
                    raise LedgerViolation(f"W5: slab {slab} is empty but still has the role of pages")
            elif self._role[slab] == _SLOT:
                states[self._slot_state[slab]] += 1
                if self._slot_state[slab] is SlotState.FREE:
                    raise LedgerViolation(f"W5: slot {slab} is free but its slab is not")
        if partial_free != self._partial_free:
            raise LedgerViolation(f"W5: {partial_free} free pages in slabs, {self._partial_free} counted")
        if states != self.slots_by_state:
            raise LedgerViolation(f"W5: slots by state are {states}, counted {self.slots_by_state}")

    def check_pages(self) -> Iterator[None]:
        """Check that the counters of pages match the owners, in slices like `check_slabs`."""
        owners = np.zeros(PAGE_OWNERS, np.int64)
        for first in range(0, len(self.page_owner), PAGES_PER_SLICE):
            owners += np.bincount(self.page_owner[first : first + PAGES_PER_SLICE], minlength=PAGE_OWNERS)
            yield
        if owners[1:].tolist() != self.pages_by_owner[1:]:
            raise LedgerViolation(f"W5: pages by owner are {owners.tolist()}, counted {self.pages_by_owner}")

    def check_pins(self, pinned: list[Pages]) -> Iterator[None]:
        """Check the counts of pages that eviction cannot free, in slices like `check_slabs`.

        `pinned`: pages of the tree that sequences use.
        """
        kept = np.zeros(self.slabs, np.int64)
        owners_by_slab = self.page_owner.reshape(self.slabs, -1)
        portion = max(1, PAGES_PER_SLICE // self.pages_per_slab)
        for first in range(0, self.slabs, portion):
            part = owners_by_slab[first : first + portion]
            kept[first : first + portion] = sum((part == owner).sum(axis=1) for owner in _UNEVICTABLE)
            yield
        for number in range(0, len(pinned), SLABS_PER_SLICE):
            pages = np.concatenate(pinned[number : number + SLABS_PER_SLICE])
            kept += np.bincount(pages // self.pages_per_slab, minlength=self.slabs)
            yield
        if kept.tolist() != self._kept:
            wrong = np.flatnonzero(kept != self._kept)
            raise LedgerViolation(f"W5: slabs {wrong[:5].tolist()} are kept {kept[wrong[:5]].tolist()} times")
        if self._kept_slabs != np.count_nonzero(kept):
            raise LedgerViolation(
                f"W5: {self._kept_slabs} slabs counted as kept, {np.count_nonzero(kept)} are"
            )
