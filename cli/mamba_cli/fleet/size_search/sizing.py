"""How many engines of which kind keep their promises over a trace. Deterministic by seed; no I/O.

Each kind of GPU with each strategy is a candidate. Its smallest fleet is searched by simulation, since more
engines keep more promises, and then asked for twice the load. The cheapest is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mamba_api.choices import Strategy
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.request import requests_of
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.size_search.fixed_size import FixedSize
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
"""The load that the fleet is asked for besides that of the trace."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """What a fleet of `engines` made of the requests. Times in seconds."""

    engines: int
    attainment: float
    """Share of all requests that got what they were promised; what no engine could hold did not."""
    hit_rate: float
    """Share of prompt tokens that were resumed."""
    ttft_p50: float
    ttft_p95: float


@dataclass(frozen=True, slots=True)
class FleetCandidate:
    """One kind of GPU with one strategy."""

    gpu: Gpu
    strategy: Strategy
    why_not: str | None = None
    """Why no fleet was found; None: one was."""
    served: FleetResult | None = None
    """By the smallest fleet that attains the goal."""
    doubled: FleetResult | None = None
    """By the same fleet, of twice the load."""
    tried: tuple[FleetResult, ...] = ()
    """Of the load of the trace, by size."""

    @property
    def price(self) -> float:
        """Of one engine for an hour; 1 where no price is told."""
        return self.gpu.price if self.gpu.price is not None else 1.0


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """What is to be served, on what, and how well. `constraints.strategy` None: all are tried."""

    model: ModelConfig
    constraints: Constraints
    weights: int
    workload: Workload
    stream: RequestStream
    slo: Slo
    gpus: tuple[Gpu, ...]
    most: int
    """Engines at most."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SizingResult:
    """All candidates in order of kind and strategy, and the cheapest of them."""

    candidates: tuple[FleetCandidate, ...]
    chosen: FleetCandidate | None
    engines_doubled: int | None
    """Of the chosen kind, for twice the load; None: more than are allowed."""


def size(question: SizingRequest, progress: Callable[[str, float], None] = lambda *_: None) -> SizingResult:
    """Search all candidates. `progress`: told what is looked at and the share that is done."""
    strategies = (question.constraints.strategy,) if question.constraints.strategy else MOST_ROBUST_FIRST
    pairs = [(gpu, strategy) for gpu in question.gpus for strategy in strategies]
    stream = question.stream
    if not question.constraints.prefix_caching:
        stream = replace(stream, identity=False)
    doubled = scaled(stream, SURPLUS, seed=question.seed)
    found: list[FleetCandidate] = []
    start = 1
    for number, (gpu, strategy) in enumerate(pairs):
        progress(f"{gpu.name}, {strategy}", number / len(pairs))
        each = _searched(question, stream, doubled, gpu, strategy, start)
        if each.served is not None:
            start = each.served.engines
        found.append(each)
    best = cheapest(found)
    more = None
    if best is not None and best.served is not None:
        progress(f"{best.gpu.name}, {best.strategy}, twice the load", 1.0)
        run = _runs(question, doubled, *_engine(question, best.gpu, best.strategy))
        more = smallest(lambda n: run(n).attainment >= GOAL, best.served.engines, question.most)
    return SizingResult(tuple(found), best, more)


def cheapest(candidates: list[FleetCandidate]) -> FleetCandidate | None:
    """The least cost; of as many GPUs without prices the weaker kind, which will cost less; then the most
    attained at twice the load, the most attained, the more robust strategy."""
    fit = [each for each in candidates if each.served is not None and each.doubled is not None]
    return min(
        fit,
        key=lambda each: (
            each.served.engines * each.price if each.served else 0.0,
            each.gpu.bandwidth if each.gpu.price is None else 0.0,
            -each.doubled.attainment if each.doubled else 0.0,
            -each.served.attainment if each.served else 0.0,
        ),
        default=None,
    )


def smallest(attains: Callable[[int], bool], start: int, most: int) -> int | None:
    """The least n from 1 to `most` with `attains(n)`, which must hold from there on; None: there is none."""
    low, high = 0, min(max(1, start), most)
    while not attains(high):
        if high == most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > 1:
        tried = (low + high) // 2
        low, high = (low, tried) if attains(tried) else (tried, high)
    return high


def _searched(
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
    tried: dict[int, FleetResult] = {}

    def attains(engines: int) -> bool:
        tried[engines] = run(engines)
        return tried[engines].attainment >= GOAL

    least = smallest(attains, start, question.most)
    runs = tuple(tried[engines] for engines in sorted(tried))
    if least is None:
        return FleetCandidate(
            gpu, strategy, f"{question.most} engines attain {tried[question.most].attainment:.1%}", tried=runs
        )
    twice = _runs(question, doubled, profile, longest)(least)
    return FleetCandidate(gpu, strategy, None, tried[least], twice, runs)


def best_share(stream: RequestStream, profile: EngineProfile, longest: int, slo: Slo) -> float:
    """Share of requests that an idle engine would serve in time, if it resumed all that can be: a bound."""
    requests = requests_of(servable(stream, longest))
    well = 0
    for request in requests:
        work = prefill_work(request.shared, request.prompt_tokens, profile.attention_ratio)
        steps = -(-(request.prompt_tokens - request.shared) // profile.chunk_tokens)
        first = work / profile.prefill_tokens_per_second + steps * profile.step_seconds
        each = profile.step_seconds + profile.sequence_seconds if request.outputs > 1 else 0.0
        well += first <= slo.ttft and each <= slo.tpot
    return well / max(1, len(stream.workload.arrivals))


def servable(stream: RequestStream, longest: int) -> RequestStream:
    """Without the requests that take more tokens than an engine's sequences may have: it refuses them."""
    kept = [a for a in stream.workload.arrivals if a.input_tokens + a.output_tokens <= longest]
    return replace(stream, workload=replace(stream.workload, arrivals=kept))


def _engine(question: SizingRequest, gpu: Gpu, strategy: Strategy) -> tuple[EngineProfile, int]:
    """The engine, and the tokens of its longest sequence. Raises `InsufficientMemory`."""
    constraints = replace(question.constraints, strategy=strategy)
    planned = plan(
        question.model, constraints, Device("cuda", gpu.memory), question.weights, question.workload
    )
    return profile_of(question.model, planned, constraints, gpu), planned.max_model_len


def _runs(
    question: SizingRequest, stream: RequestStream, profile: EngineProfile, longest: int
) -> Callable[[int], FleetResult]:
    taken = servable(stream, longest)

    def run(engines: int) -> FleetResult:
        around = FleetEnvironment(least=engines, most=engines, initial=engines)
        simulated = Simulation(
            taken, profile, SimulatedGateway, FixedSize(engines), question.slo, around, question.seed
        )
        simulated.run()
        return fleet_result(simulated, engines, len(stream.workload.arrivals))

    return run


def fleet_result(run: Simulation, engines: int, submitted: int) -> FleetResult:
    """What a run that is over came to, of so many requests."""
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
