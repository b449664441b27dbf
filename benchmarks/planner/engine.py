"""One engine under one plan: the product's core, scheduler and cache in the time that `step_time` says.

It takes its sizes, its strategy and its pace from the plan as a booted engine does. `served` runs traffic in
a closed loop and counts what ended after the beginning was over.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.planner.step_time import StepTime
from benchmarks.planner.traffic import Traffic, Turn

from mamba_planner.constraints import Constraints
from mamba_planner.memory import MOST_RUNNING
from mamba_planner.memory_plan import MemoryPlan
from mamba_planner.strategy import reservation
from mamba_server.cache.arena import Arena
from mamba_server.cache.eviction import Eviction
from mamba_server.cache.persistent_batch import PersistentBatch
from mamba_server.cache.state_cache import RadixStateCache
from mamba_server.cache.tree import RadixTree
from mamba_server.engine.scheduling.limits import SchedulerLimits
from mamba_server.engine.scheduling.scheduler import Scheduler
from mamba_server.engine.sequences.schedule import Schedule
from mamba_server.engine.stepping.core import EngineCore
from mamba_server.engine.stepping.forward_stream import Result, Ticket
from mamba_server.engine.stepping.step_pace import STEP_TIME, StepPace
from mamba_server.engine.stepping.step_result import StepResult, StepRunner
from mamba_server.wire import AddRequest, SamplingParams, TokenIds

CHUNK = 64
Work = Callable[[], Callable[[], StepResult]]


class AnyToken:
    """Answers at once with a token that no prompt has."""

    def prepare(self, schedule: Schedule) -> Work:
        rows = len(schedule.decodes) + sum(piece.final for piece in schedule.pieces)
        tokens = np.full(rows, 32_001, np.int32)
        return lambda: lambda: StepResult(tokens)


class SimulatedGpu:
    """Runner and stream in one: what is launched ends one after the other, each after its step's time.

    `now` is the engine's clock, in seconds: whoever waits for a step waits until it ends.
    """

    def __init__(self, runner: StepRunner, batch: PersistentBatch, step_time: StepTime) -> None:
        self._runner, self._batch, self._step_time = runner, batch, step_time
        self._seconds = 0.0
        """Duration of the next step."""
        self._busy_until = 0.0
        self._ends: dict[int, float] = {}
        self.now = 0.0

    def prepare(self, schedule: Schedule) -> Work:
        self._seconds = self._step_time.of(schedule, self._batch)
        return self._runner.prepare(schedule)

    def launch(self, work: Callable[[], Result]) -> Ticket[Result]:
        ticket = Ticket(work)
        ticket.run()
        self._busy_until = max(self._busy_until, self.now) + self._seconds
        self._ends[id(ticket)] = self._busy_until
        return ticket

    def wait(self, ticket: Ticket[Result]) -> Result:
        self.now = max(self.now, self._ends.pop(id(ticket)))
        return ticket.get()

    def close(self) -> None:
        """Release nothing: the runner owns nothing."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Results of an engine after the warm-up."""

    seconds: float
    requests: int
    tokens: int
    """Prompt and output tokens of the requests that ended."""
    resumed: float
    """Share of the prompt tokens that were not computed."""
    running: float
    """Sequences at once, mean over the steps."""
    preemptions: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


def engine(
    plan: MemoryPlan,
    constraints: Constraints,
    step_time: StepTime,
    runner: Callable[[RadixStateCache], StepRunner] = lambda _: AnyToken(),
) -> tuple[EngineCore, SimulatedGpu]:
    """Build the core of an engine with that plan, and the simulated GPU that counts its time."""
    most = min(constraints.max_running_requests or MOST_RUNNING["cuda"], plan.slabs - 1)
    cache = RadixStateCache(
        Arena(plan.slabs, plan.pages_per_slab),
        RadixTree(plan.page_size, Eviction("RecomputeCost")),
        PersistentBatch(most, -(-plan.max_model_len // plan.page_size)),
        reservation(plan.strategy, overlap=plan.overlap),
        track_interval=constraints.track_interval,
        cap=constraints.max_checkpoints_per_path,
    )
    limits = SchedulerLimits(
        constraints.chunked_prefill_tokens, CHUNK, most, plan.max_model_len, plan.workload.output_tokens
    )
    gpu = SimulatedGpu(runner(cache), cache.batch, step_time)
    core = EngineCore(
        Scheduler(cache, limits), cache, gpu, gpu,
        overlap=plan.overlap, eos_token_ids=frozenset(), clock=lambda: gpu.now,
        pace=StepPace(STEP_TIME["cuda"], limits.chunk, limits.step_tokens),
    )  # fmt: skip
    return core, gpu


def served(
    core: EngineCore, gpu: SimulatedGpu, traffic: Traffic, requests: int, beginning: int
) -> EngineResult:
    """Keep the concurrency until `beginning` and then `requests` more have ended; the latter count."""
    turns: dict[str, tuple[Turn, list[int]]] = {}
    seen, number, ended, tokens = core.scheduler.counters, 0, 0, 0
    began, prompts, cached, preempted = 0.0, 0, 0, 0
    running, steps = 0, 0
    while ended < beginning + requests:
        while len(turns) < traffic.shape.concurrency:
            turn, prompt = traffic.next_turn()
            name = f"r{number}"
            number += 1
            params = SamplingParams(max_tokens=turn.outputs, temperature=0.0, ignore_eos=True)
            if (refused := core.add(AddRequest(name, TokenIds(prompt), params, arrival=gpu.now))) is not None:
                raise ValueError(refused.message)
            turns[name] = (turn, [])
        running, steps = running + core.scheduler.running, steps + 1
        for delta in core.step():
            turn, answer = turns[delta.request_id]
            answer.extend(delta.token_ids)
            if delta.finish_reason is None:
                continue
            del turns[delta.request_id]
            traffic.answered(turn, answer)
            ended += 1
            tokens += turn.prompt + len(answer)
            if ended == beginning:
                began, tokens, running, steps = gpu.now, 0, 0, 0
                prompts, cached, preempted = seen.prompt_tokens, seen.cached_tokens, seen.preemptions
    return EngineResult(
        gpu.now - began, requests, tokens,
        (seen.cached_tokens - cached) / max(1, seen.prompt_tokens - prompts),
        running / max(1, steps), seen.preemptions - preempted,
    )  # fmt: skip
