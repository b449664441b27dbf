"""An arena that counts who asks, refuses on demand, and never lets memory go that a launched step names."""

from collections import Counter
from collections.abc import Callable

import numpy as np

from mamba_server.cache.arena import Allocation, AllocationSite, Arena


class GuardedArena(Arena):
    """`asked` and `refused` count allocations by site; `in_flight` names what launched steps use (O3)."""

    def __init__(
        self, slabs: int, pages_per_slab: int, refuse: Callable[[AllocationSite], bool] | None = None
    ) -> None:
        super().__init__(slabs, pages_per_slab, self._injected)
        self.refuse = refuse or (lambda _: False)
        self.requested: Counter[AllocationSite] = Counter()
        self.refused: Counter[AllocationSite] = Counter()
        self.in_flight: dict[int, tuple[set[int], np.ndarray]] = {}

    def _injected(self, site: AllocationSite) -> bool:
        self.requested[site] += 1
        if self.refuse(site):
            self.refused[site] += 1
            return True
        return False

    def allocate(
        self, site: AllocationSite, *, live: int = 0, tracking: int = 0, pages: int = 0, writer: int = 0
    ) -> Allocation | None:
        before = (self.free_slots, self.free_pages, self.page_owner.tobytes())
        grant = super().allocate(site, live=live, tracking=tracking, pages=pages, writer=writer)
        if grant is None:
            assert before == (self.free_slots, self.free_pages, self.page_owner.tobytes()), "W6"
            return None
        for step in [step for step in self.in_flight if step <= self.completed]:
            del self.in_flight[step]
        for step, (slots, named) in self.in_flight.items():
            assert not slots.intersection(grant.slots), f"O3: slot given while step {step} may use it"
            if self.pages_per_slab:
                assert not len(np.intersect1d(named, grant.pages)), f"O3: page given, step {step} uses it"
        return grant
