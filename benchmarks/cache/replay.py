"""A cache simulator made of the engine itself: real tree, state cache, scheduler and core; no model.

The runner completes each step at once, so what is left is which tokens the cache saves. Requests run one
after the other in the order of the trace. Called by the hit-rate benchmark and its tests.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, prompt
from mamba_planner.strategy import reservation
from mamba_server.cache.arena import Arena
from mamba_server.cache.eviction import Eviction, Policy
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import InlineStream
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.wire import AddRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Settings of an engine that decide about its cache."""

    eviction: Policy = "RecomputeCost"
    strategy: str = "ExtraBuffer"
    track_interval: int = 256
    cap: int = 4
    page_size: int = 16
    step_tokens: int = 8192
    most_outputs: int = 1
    """Outputs beyond this many are not replayed: a trace has no ids for them, so nothing can match them."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Measurements of one replay."""

    prompt_tokens: int
    cached_tokens: int
    refused: int
    checkpoints_made: int
    checkpoints_evicted: int
    checkpoints_skipped: int
    misses: dict[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class InstantRunner:
    """Answers every step at once, with a token that no prompt has."""

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        rows = len(schedule.decodes) + sum(piece.final for piece in schedule.pieces)
        tokens = np.full(rows, -1, np.int32)
        return lambda: lambda: StepResult(tokens)


def build(
    size: CacheSize, policy: CachePolicy, longest: int, *, rows: int = 4, arena: type[Arena] = Arena
) -> EngineCore:
    """Return an engine core of that cache for up to `rows` sequences at once of up to `longest` tokens."""
    cache = RadixStateCache(
        size.arena(policy.page_size, arena),
        RadixTree(policy.page_size, Eviction(policy.eviction)),
        PersistentBatch(rows, -(-longest // policy.page_size)),
        reservation(policy.strategy, overlap=False),
        track_interval=policy.track_interval,
        cap=policy.cap,
    )
    limits = SchedulerLimits(policy.step_tokens, 64, rows, longest)
    return EngineCore(
        Scheduler(cache, limits), cache, InlineStream(), InstantRunner(), overlap=False,
        eos_token_ids=frozenset(),
    )  # fmt: skip


def replay(
    arrivals: Iterable[Arrival], size: CacheSize, policy: CachePolicy, block: int = BLOCK
) -> ReplayResult:
    """Run the arrivals one after the other. Requests that could never fit are counted, not served."""
    arrivals = list(arrivals)
    longest = max((a.input_tokens for a in arrivals), default=0) + policy.most_outputs
    core = build(size, policy, longest)
    causes: Counter[str] = Counter()
    refused = 0
    for number, arrival in enumerate(arrivals):
        outputs = max(1, min(arrival.output_tokens, policy.most_outputs))
        request = AddRequest(
            f"r{number}", prompt(arrival, block).tolist(), SamplingParams(max_tokens=outputs, ignore_eos=True)
        )
        if core.add(request) is not None:
            refused += 1
            continue
        while not core.idle:
            core.step()
    counters, seen = core.cache.counters, core.scheduler.counters
    causes.update(seen.misses)
    return ReplayResult(
        seen.prompt_tokens, seen.cached_tokens, refused,
        counters.created, counters.evicted, counters.skipped, dict(causes),
    )  # fmt: skip
