"""Sizing: how many engines of which kind meet an objective over a trace. Deterministic by seed; no I/O.

Each kind of GPU with each strategy is a candidate. A search by simulation finds its smallest fleet that meets
the objective, since more engines meet it better, and then simulates that fleet under twice the load. The
cheapest candidate is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mamba_api.choices import Strategy
from mamba_cli.fleet.engine_group import FixedSize
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.request import requests_of
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.size_search.gpu import Gpu
from mamba_cli.fleet.size_search.roofline import profile_of
from mamba_cli.fleet.slo import GOAL, Slo
from mamba_cli.fleet.workload import RequestStream, scaled
from mamba_planner import Constraints, Device, InsufficientMemory, plan
from mamba_planner.arithmetic import prefill_work
from mamba_planner.constraints import Workload
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import MOST_ROBUST_FIRST

SURPLUS = 2.0
"""Multiple of the trace's load under which a chosen fleet is simulated as well."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """Result of a simulation of a fleet of `engines` engines. Times are in seconds."""

    engines: int
    attainment: float
    """Share of all requests that met the objective; a request that no engine can hold does not."""
    hit_rate: float
    """Share of prompt tokens resumed from a checkpoint."""
    ttft_p50: float
    ttft_p95: float


@dataclass(frozen=True, slots=True)
class FleetCandidate:
    """A kind of GPU with a strategy, and the smallest fleet of it that attains the goal."""

    gpu: Gpu
    strategy: Strategy
    why_not: str | None = None
    """Reason why no fleet attains the goal, or None if one does."""
    served: FleetResult | None = None
    """Result of the smallest fleet that attains the goal."""
    doubled: FleetResult | None = None
    """Result of the same fleet under twice the load."""
    runs: tuple[FleetResult, ...] = ()
    """Results under the trace's load for each simulated number of engines, in ascending order."""

    @property
    def price(self) -> float:
        """Price of one engine for an hour; 1 if the user gave no price."""
        return self.gpu.price if self.gpu.price is not None else 1.0


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """Question of a search for a fleet: the model, the requests, the objective and the kinds of GPU.

    If `constraints.strategy` is None, every strategy is a candidate.
    """

    model: ModelConfig
    constraints: Constraints
    weights: int
    """Bytes of the weights on one device."""
    workload: Workload
    stream: RequestStream
    slo: Slo
    gpus: tuple[Gpu, ...]
    most: int
    """Largest number of engines in a fleet."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SizingResult:
    """Result of a search: all candidates in order of kind and strategy, and the cheapest of them."""

    candidates: tuple[FleetCandidate, ...]
    chosen: FleetCandidate | None
    engines_doubled: int | None
    """Engines of the chosen candidate that twice the load needs, or None if more than allowed."""


def size(question: SizingRequest, progress: Callable[[str, float], None] = lambda *_: None) -> SizingResult:
    """Search all candidates; `progress` receives the current candidate and the share that is done."""
    strategies = (question.constraints.strategy,) if question.constraints.strategy else MOST_ROBUST_FIRST
    pairs = [(gpu, strategy) for gpu in question.gpus for strategy in strategies]
    stream = question.stream
    if not question.constraints.prefix_caching:
        stream = replace(stream, identity=False)
    doubled = scaled(stream, SURPLUS, seed=question.seed)
    candidates: list[FleetCandidate] = []
    start = 1
    for number, (gpu, strategy) in enumerate(pairs):
        progress(f"{gpu.name}, {strategy}", number / len(pairs))
        candidate = _search(question, stream, doubled, gpu, strategy, start)
        if candidate.served is not None:
            start = candidate.served.engines
        candidates.append(candidate)
    best = cheapest(candidates)
    more = None
    if best is not None and best.served is not None:
        progress(f"{best.gpu.name}, {best.strategy}, twice the load", 1.0)
        run = _runs(question, doubled, *_engine(question, best.gpu, best.strategy))
        more = smallest(lambda n: run(n).attainment >= GOAL, best.served.engines, question.most)
    return SizingResult(tuple(candidates), best, more)


def cheapest(candidates: list[FleetCandidate]) -> FleetCandidate | None:
    """Return the cheapest candidate that attains the goal, or None if none does.

    Without prices, the weaker kind wins at the same number of GPUs, since it will cost less. Further ties go
    to the higher attainment under twice the load, the higher attainment, and the more robust strategy.
    """
    fit = [candidate for candidate in candidates if candidate.served and candidate.doubled]
    return min(
        fit,
        key=lambda candidate: (
            candidate.served.engines * candidate.price if candidate.served else 0.0,
            candidate.gpu.bandwidth if candidate.gpu.price is None else 0.0,
            -candidate.doubled.attainment if candidate.doubled else 0.0,
            -candidate.served.attainment if candidate.served else 0.0,
        ),
        default=None,
    )


def smallest(attains: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the smallest n from 1 to `most` with `attains(n)`, or None. `attains` must be monotonic."""
    low, high = 0, min(max(1, start), most)
    while not attains(high):
        if high == most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attains(middle) else (middle, high)
    return high


def _search(
    question: SizingRequest,
    stream: RequestStream,
    doubled: RequestStream,
    gpu: Gpu,
    strategy: Strategy,
    start: int,
) -> FleetCandidate:
    try:
        profile, longest = _engine(question, gpu, strategy)
    except InsufficientMemory as error:
        return FleetCandidate(gpu, strategy, f"does not fit its memory: {error}")
    if (share := best_share(stream, profile, longest, question.slo)) < GOAL:
        return FleetCandidate(
            gpu,
            strategy,
            f"an idle engine would serve {share:.0%} in time; the others are too long or take too long",
        )
    run = _runs(question, stream, profile, longest)
    results: dict[int, FleetResult] = {}

    def attains(engines: int) -> bool:
        results[engines] = run(engines)
        return results[engines].attainment >= GOAL

    engines = smallest(attains, start, question.most)
    runs = tuple(results[size] for size in sorted(results))
    if engines is None:
        why_not = f"{question.most} engines attain {results[question.most].attainment:.1%}"
        return FleetCandidate(gpu, strategy, why_not, runs=runs)
    twice = _runs(question, doubled, profile, longest)(engines)
    return FleetCandidate(gpu, strategy, None, results[engines], twice, runs)


def best_share(stream: RequestStream, profile: EngineProfile, longest: int, slo: Slo) -> float:
    """Return an upper bound on the attainment: that of an idle engine which resumes every shared prefix."""
    requests = requests_of(servable(stream, longest))
    attained = 0
    for request in requests:
        work = prefill_work(request.shared, request.prompt_tokens, profile.attention_ratio)
        steps = -(-(request.prompt_tokens - request.shared) // profile.chunk_tokens)
        first = work / profile.prefill_tokens_per_second + steps * profile.step_seconds
        per_token = profile.step_seconds + profile.sequence_seconds if request.outputs > 1 else 0.0
        attained += first <= slo.ttft and per_token <= slo.tpot
    return attained / max(1, len(stream.workload.arrivals))


def servable(stream: RequestStream, longest: int) -> RequestStream:
    """Return the stream without requests of more than `longest` tokens, which an engine refuses."""
    arrivals = [a for a in stream.workload.arrivals if a.input_tokens + a.output_tokens <= longest]
    return replace(stream, workload=replace(stream.workload, arrivals=arrivals))


def _engine(question: SizingRequest, gpu: Gpu, strategy: Strategy) -> tuple[EngineProfile, int]:
    """Return the engine's profile, and the tokens of its longest sequence.

    Raises:
        InsufficientMemory: The model does not fit into the memory of the GPU.
    """
    constraints = replace(question.constraints, strategy=strategy)
    memory_plan = plan(
        question.model, constraints, Device("cuda", gpu.memory), question.weights, question.workload
    )
    return profile_of(question.model, memory_plan, constraints, gpu), memory_plan.max_model_len


def _runs(
    question: SizingRequest, stream: RequestStream, profile: EngineProfile, longest: int
) -> Callable[[int], FleetResult]:
    served = servable(stream, longest)

    def run(engines: int) -> FleetResult:
        environment = FleetEnvironment(least=engines, most=engines, initial=engines)
        simulation = Simulation(
            served, profile, SimulatedGateway, FixedSize(engines), question.slo, environment, question.seed
        )
        simulation.run()
        return fleet_result(simulation, engines, len(stream.workload.arrivals))

    return run


def fleet_result(run: Simulation, engines: int, submitted: int) -> FleetResult:
    """Return the result of a finished simulation; its attainment is a share of the `submitted` requests."""
    requests = [request for request in run.requests if request.engine]
    first = sorted(
        request.first_token_at - request.arrived_at
        for request in requests
        if request.first_token_at is not None
    )
    prompts = sum(request.prompt_tokens for request in requests)

    def quantile(share: float) -> float:
        return round(first[min(len(first) - 1, int(share * len(first)))], 3) if first else 0.0

    return FleetResult(
        engines,
        round(sum(map(run.slo.attained, requests)) / max(1, submitted), 4),
        round(sum(request.resumed for request in requests) / max(1, prompts), 4),
        quantile(0.5),
        quantile(0.95),
    )
