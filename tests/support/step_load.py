"""An engine without a model, for what is counted in steps: many steps of any load in a blink.

Every row samples the same token; slots and pages are booked as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mamba_planner.strategy import reservation
from mamba_server.cache.arena import Arena
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.scheduling.start_budget import StartBudget
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.wire import AddRequest, SamplingParams
from simulated_stream import SimulatedStream

PAGE = 16


class _NoModel:
    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        count = len(schedule.decodes) + sum(piece.final for piece in schedule.pieces)
        return lambda: lambda: StepResult(np.full(count, 5, np.int32))


@dataclass(frozen=True)
class LoadSetup:
    """Sizes of the engine; the track interval is 256, the prefill chunk 64."""

    slabs: int = 60
    pages_per_slab: int = 8
    rows: int = 64
    step_tokens: int = 2048
    strategy: str = "NoBuffer"
    prefix_caching: bool = False
    longest: int = 8192


class StepLoad:
    """One engine under load. `first[name]`, `ended[name]`: the step of its first and its last token."""

    def __init__(self, setup: LoadSetup, budget: StartBudget | None = None) -> None:
        pages = -(-setup.longest // PAGE)
        self.cache = RadixStateCache(
            Arena(setup.slabs, setup.pages_per_slab), RadixTree(PAGE, Eviction("RecomputeCost")),
            PersistentBatch(setup.rows, pages), reservation(setup.strategy, overlap=True),
            track_interval=256, cap=4, prefix_caching=setup.prefix_caching,
        )  # fmt: skip
        limits = SchedulerLimits(setup.step_tokens, 64, setup.rows, setup.longest)
        self.scheduler = Scheduler(self.cache, limits, budget)
        self.core = EngineCore(
            self.scheduler, self.cache, SimulatedStream(lambda _: 0), _NoModel(),
            overlap=True, eos_token_ids=frozenset(), max_waiting=100_000,
        )  # fmt: skip
        self._rng = np.random.default_rng(0)
        self.steps = 0
        self.first: dict[str, int] = {}
        self.ended: dict[str, int] = {}

    def add(
        self, name: str, prompt: int, outputs: int, *, most: int = 0, priority: int = 0, salt: str = ""
    ) -> None:
        """Add a request of `prompt` tokens that ends after `outputs`; `most`: its max_tokens, if larger."""
        token_ids = self._rng.integers(6, 1000, prompt).tolist()
        params = SamplingParams(max_tokens=max(most, outputs), min_tokens=outputs, stop_token_ids=[5])
        assert self.core.add(AddRequest(name, token_ids, params, priority=priority, cache_salt=salt)) is None

    def step(self) -> list[str]:
        """Perform one step and return the names of the sequences that ended in it."""
        self.steps += 1
        ended = []
        for delta in self.core.step():
            self.first.setdefault(delta.request_id, self.steps)
            if delta.finish_reason:
                self.ended[delta.request_id] = self.steps
                ended.append(delta.request_id)
        return ended
