"""CPU time of the scheduler per step: plan, device arrays, commit, at 1, 32 and 256 running sequences.

No model: the runner builds the real step arrays and answers at once, so what is timed is what the engine's
own Python costs while a device works. Then the worst steps where much is waiting or cached: 10,000 cache
salts, and 250,000 resident pages with prompts of 20,000 tokens. Then what is collected of cached prefixes for
the prefix index, as a part of the steps. Last, what makes the arrays of steps with prompts ready for kernels.
`python -m benchmarks.scheduler_step`; prints four tables. All is CPU time of the thread, garbage collection
included: compare runs side by side.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from mamba_planner.strategy import reservation
from mamba_server.cache.arena import Arena
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.execution.step_arrays import build
from mamba_server.engine.process_memory.garbage import never_search_old_objects, search_new_objects
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.scheduling.start_budget import StartBudget
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import InlineStream
from mamba_server.engine.stepping.step_result import StepResult
from mamba_server.model.forward_batch import ForwardBatch
from mamba_server.model.step_plans import StepPlans
from mamba_server.model.trial_batch import TrialPiece, trial_batch
from mamba_server.wire import AddRequest, SamplingParams, TokenIds

PROMPT, OUTPUT, PAGE, CHUNK = 500, 600, 16, 64


class InstantRunner:
    """Builds the arrays of each step and answers with some token."""

    def __init__(self, cache: RadixStateCache) -> None:
        self.cache = cache
        self.prepare_seconds = 0.0

    def prepare(self, schedule: Schedule) -> Callable[[], Callable[[], StepResult]]:
        began = time.thread_time()
        arrays = build(schedule, self.cache.batch, CHUNK, PAGE)
        self.prepare_seconds = time.thread_time() - began
        tokens = np.full(len(arrays.sampling), 7, np.int32)
        return lambda: lambda: StepResult(tokens)


def engine(
    slabs: int,
    pages_per_slab: int,
    running: int,
    length: int,
    strategy: str = "ExtraBuffer",
    *,
    bounded: bool = True,
) -> tuple[EngineCore, InstantRunner]:
    """Build a core over that arena, for `running` sequences of `length` tokens; any number may wait.

    `bounded`: starts have a time.
    """
    cache = RadixStateCache(
        Arena(slabs, pages_per_slab),
        RadixTree(PAGE, Eviction("RecomputeCost")),
        PersistentBatch(running, length // PAGE),
        reservation(strategy, overlap=True),
        track_interval=256,
        cap=4,
    )
    runner = InstantRunner(cache)
    budget = StartBudget(time.thread_time) if bounded else None
    core = EngineCore(
        Scheduler(cache, SchedulerLimits(8192, CHUNK, running, length), budget),
        cache, InlineStream(), runner,
        overlap=True, eos_token_ids=frozenset({0}), max_waiting=1 << 20,
    )  # fmt: skip
    return core, runner


def measure(running: int, strategy: str = "ExtraBuffer") -> dict[str, float]:
    """Return the milliseconds per decode step, medians over a few hundred steps."""
    slabs = 4 * running + running * (PROMPT + OUTPUT) // PAGE // 100 + 50
    core, runner = engine(slabs, 100, running, 8192, strategy, bounded=False)
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


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of CPU time."""
    began = time.thread_time()
    call()
    return 1e3 * (time.thread_time() - began)


def beat(core: EngineCore) -> None:
    """Do the work of the engine process for one step."""
    core.step()
    search_new_objects()


def until_idle(core: EngineCore) -> Iterator[float]:
    while not core.idle:
        yield timed(lambda: beat(core))


def with_salts(salts: int = 10_000) -> dict[str, list[float]]:
    """Measure with one waiting short prompt for each cache salt; the arena holds a fraction of them."""
    core, _ = engine(3000, 32, 128, 8192)
    rng = np.random.default_rng(0)
    requests = [
        AddRequest(
            f"r{number}", TokenIds(rng.integers(1, 1000, int(rng.integers(40, 400))).tolist()),
            SamplingParams(max_tokens=4), cache_salt=f"salt{number}",
        )
        for number in range(salts)
    ]  # fmt: skip
    added = [timed(partial(core.add, request)) for request in requests]
    # The engine process takes in a few between two steps.
    search_new_objects()
    return {f"{salts:,} salts: add one": added, f"{salts:,} salts: step": list(until_idle(core))}


def with_pages(pages: int = 250_000, turns: int = 200) -> dict[str, list[float]]:
    """Measure with resident prefixes of `pages` pages while answers and long prompts are computed."""
    core, runner = engine(pages * 17 // 100, 10, 128, 32_768)
    cache = runner.cache
    rng = np.random.default_rng(0)
    stems = [rng.integers(1, 30_000, 512).tolist() for _ in range(50)]
    number = 0

    def add(prompt: list[int], answer: int) -> None:
        nonlocal number
        number += 1
        core.add(AddRequest(f"r{number}", TokenIds(prompt), SamplingParams(max_tokens=answer)))

    filling = []
    while cache.tree.pages < pages and core.cache.counters.evicted < 1000:
        while len(core.scheduler.waiting) < 16:
            add(stems[number % 50] + rng.integers(1, 30_000, int(rng.integers(100, 900))).tolist(), 4)
        filling.append(timed(lambda: beat(core)))
    filling.extend(until_idle(core))
    resident = cache.tree.pages
    for _ in range(32):
        add(rng.integers(1, 30_000, 100).tolist(), 4 * turns)
    busy = []
    for turn in range(turns):
        if not turn % 5:
            add(rng.integers(1, 30_000, 20_000).tolist(), 4)
        busy.append(timed(lambda: beat(core)))
    slices, ended = [], object()
    recount = cache.recount()
    last: list[object] = [None]
    while last[-1] is not ended:
        slices.append(timed(lambda: last.append(next(recount, ended))))
    emptied = [timed(lambda: cache.arena.emptiable_slabs)]
    flushed, swept = [timed(cache.flush)], []
    while cache.sweeping:
        swept.append(timed(cache.sweep))
    return {
        f"{resident:,} pages: step of many starts": filling,
        f"{resident:,} pages: step, 20,000 tokens": busy,
        f"{resident:,} pages: recount slice": slices,
        f"{resident:,} pages: what can be emptied": emptied,
        f"{resident:,} pages: flush": flushed,
        f"{resident:,} pages: sweep a little": swept,
    }


class TimedListener:
    """The tree's listener, with a clock around each call."""

    def __init__(self, core: EngineCore) -> None:
        self.milliseconds = 0.0
        self._changes = core.tree_changes
        core.cache.listen(self)

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self._changes, name)

        def call(*arguments: object) -> None:
            self.milliseconds += timed(lambda: method(*arguments))

        return call

    def take(self) -> int:
        """Take the pending message and return its number of bytes."""
        held = []
        self.milliseconds += timed(lambda: held.append(self._changes.take()))
        (message,) = held
        if message is None:
            return 0
        return len(message.gained) + len(message.lost) + len(message.pages_gained) + len(message.pages_lost)


def publishing(running: int, requests: int = 2000) -> dict[str, float]:
    """Measure the messages of 32 conversations to the prefix index.

    Each prompt is 300 tokens longer than the one before it, up to 4,000, with answers of 100 tokens; the
    arena holds a part of them. A message is built after every tenth step.
    """
    core, _ = engine(running * 40, 10, running, 8192)
    listener = TimedListener(core)
    rng = np.random.default_rng(0)
    histories: list[list[int]] = [[] for _ in range(32)]
    sent, steps, total, message_bytes = 0, 0, 0.0, 0
    while sent < requests or not core.idle:
        while sent < requests and len(core.scheduler.waiting) < 4:
            flow = sent % len(histories)
            if len(histories[flow]) > 4000:
                histories[flow] = []
            histories[flow] += rng.integers(1, 30_000, 300).tolist()
            core.add(AddRequest(f"r{sent}", TokenIds(histories[flow]), SamplingParams(max_tokens=100)))
            sent += 1
        total += timed(lambda: beat(core))
        steps += 1
        if not steps % 10:
            message_bytes += listener.take()
    return {
        "step": total / steps,
        "collected": listener.milliseconds / steps,
        "bytes": message_bytes / steps,
        "evicted": float(core.cache.counters.evicted),
    }


RAGGED = [90, 1030, 777, 300, 512, 48, 1200, 650, 333, 801, 219, 460, 700, 96, 530, 240]
STEPS_WITH_PROMPTS: dict[str, tuple[list[int], list[int]]] = {
    "1 prompt of 2,048 tokens": ([], [2048]),
    "20 prompts of 100 tokens": ([], [100] * 20),
    "16 ragged prompts, 7,986 tokens": ([], RAGGED),
    "128 answers and a prompt of 1,024 tokens": ([500] * 128, [1024]),
}
"""Contexts of the decodes and lengths of the prompts."""


def indexing(decodes: list[int], prompts: list[int], *, rounds: int = 200) -> float:
    """Return the milliseconds of a step for the buffer that is sent and the plans over it.

    The plans are those that Triton's kernels read.
    """
    pieces = [TrialPiece(length, length) for length in prompts]
    host = trial_batch(decodes, pieces, chunk=CHUNK, spare_row=len(decodes) + len(prompts))
    ids, table = np.zeros(len(host.positions), np.int32), torch.zeros(1, 1, dtype=torch.int32)

    def ready() -> None:
        batch = ForwardBatch.from_host(
            host, token_ids=ids, page_table=table, chunk_size=CHUNK, page_size=PAGE,
            device=torch.device("cpu"), segments=(4,),
        )  # fmt: skip
        plans = StepPlans.build(batch, recurrent=True, attention=True, gathered=False)
        for _, plan in plans.prefill:
            _ = plan.on_device, plan.slots.device_routes, plan.segments(4)

    return statistics.median(timed(ready) for _ in range(rounds))


def main() -> None:
    print("running   step ms (plan + arrays + commit)   p99 ms   of which arrays ms")
    for running in (1, 32, 256):
        seen = measure(running)
        print(f"{running:7d}   {seen['step']:33.3f}   {seen['p99']:6.3f}   {seen['arrays']:18.3f}")
    never_search_old_objects()
    print("\nwhat                                       times   median ms   p99 ms   worst ms")
    for what, times in {**with_salts(), **with_pages()}.items():
        times.sort()
        median, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
        print(f"{what:40s}   {len(times):5d}   {median:9.3f}   {p99:6.3f}   {times[-1]:8.3f}")
    print("\nrunning   step ms   of which changes ms   bytes a step   evicted")
    for running in (1, 8, 32):
        seen = publishing(running)
        collected = f"{seen['collected']:18.4f}   {seen['bytes']:7.0f}   {seen['evicted']:8.0f}"
        print(f"{running:7d}   {seen['step']:7.3f}   {collected}")
    print("\nstep                                       median ms")
    for what, (decodes, prompts) in STEPS_WITH_PROMPTS.items():
        print(f"{what:40s}   {indexing(decodes, prompts):9.3f}")


if __name__ == "__main__":
    main()
