"""CPU time of the scheduler per step: plan, device arrays, commit, at 1, 32 and 256 running sequences.

No model: the runner builds the real step arrays and answers at once, so what is timed is what the engine's
own Python costs while a device works. `python benchmarks/scheduler_step.py`; prints a table.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from mamba_planner.strategy import reservation
from mamba_server.cache.arena import Arena
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import StateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.core import EngineCore, StepResult
from mamba_server.engine.forward_stream import InlineStream
from mamba_server.engine.limits import Limits
from mamba_server.engine.schedule import Schedule
from mamba_server.engine.scheduler import Scheduler
from mamba_server.engine.step_arrays import build
from mamba_server.wire import AddRequest, SamplingParams

PROMPT, OUTPUT, PAGE, CHUNK = 500, 600, 16, 64


class InstantRunner:
    """Builds the arrays of each step and answers with some token."""

    def __init__(self, batch: PersistentBatch) -> None:
        self.batch = batch
        self.prepare_seconds = 0.0

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        began = time.thread_time()
        arrays = build(schedule, self.batch, CHUNK, PAGE)
        self.prepare_seconds = time.thread_time() - began
        tokens = np.full(len(arrays.sampling), 7, np.int32)
        return lambda: lambda: StepResult(tokens)


def measure(running: int, strategy: str = "ExtraBuffer") -> dict[str, float]:
    """Milliseconds per decode step, medians over a few hundred steps with `running` sequences."""
    pages_per_slab = 100
    slabs = 4 * running + running * (PROMPT + OUTPUT) // PAGE // pages_per_slab + 50
    cache = StateCache(
        Arena(slabs, pages_per_slab),
        RadixTree(PAGE, Eviction("RecomputeCost")),
        PersistentBatch(running, 8192 // PAGE),
        reservation(strategy, overlap=True),
        track_interval=256,
        cap=4,
    )
    runner = InstantRunner(cache.batch)
    core = EngineCore(
        Scheduler(cache, Limits(8192, CHUNK, running, 8192)), InlineStream(), runner,
        overlap=True, eos_token_ids=frozenset({0}),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for index in range(running):
        prompt = rng.integers(1, 1000, PROMPT).tolist()
        core.add(AddRequest(f"r{index}", prompt, SamplingParams(max_tokens=OUTPUT)))
    while core.scheduler.waiting or core.scheduler.prefilling:
        core.step()
    total, prepare = [], []
    for _ in range(400):
        began = time.thread_time()
        core.step()
        total.append(time.thread_time() - began)
        prepare.append(runner.prepare_seconds)
    assert core.scheduler.running == running
    return {
        "step": 1e3 * statistics.median(total),
        "p99": 1e3 * sorted(total)[int(0.99 * len(total))],
        "arrays": 1e3 * statistics.median(prepare),
    }


def main() -> None:
    print("running   step ms (plan + arrays + commit)   p99 ms   of which arrays ms")
    for running in (1, 32, 256):
        seen = measure(running)
        print(f"{running:7d}   {seen['step']:33.3f}   {seen['p99']:6.3f}   {seen['arrays']:18.3f}")


if __name__ == "__main__":
    main()
