"""`SimulatedFleet`: engines behind gateways in simulated time, used by `routing`.

Engines are the product's state caches with a queue and a speed; gateways are the product's routers over
reports that are up to a second old.
"""

import heapq
import itertools
import statistics
from collections import deque
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from benchmarks.cache.cache_run import cache_of, serve
from benchmarks.queue_balance import (
    LEAST_SECONDS,
    WINDOW_SECONDS,
    QueueBalance,
    over_windows,
    seconds_over_mean,
)

from mamba_cli.fleet.cache_index import CacheIndex, Knowledge
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import Tokens, prompt
from mamba_cli.fleet.workload import TraceWorkload
from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.routing.decision import NoCandidate
from mamba_gateway.routing.router import Router
from mamba_gateway.routing.scoring import RoutingWeights
from mamba_server.cache.state_cache import RadixStateCache

ATTENTION_RATIO = 4.6e-6
"""Ratio of attention work to other work in Nemotron Nano 9B v2."""
TOKEN_SECONDS = 0.02
"""Seconds per generated token."""
PROBE_SECONDS = 1.0


@dataclass(slots=True)
class _SimulatedRequest:
    number: int
    arrived_at: float
    token_ids: Tokens
    outputs: int
    gateway: int
    ticket: int


@dataclass(slots=True)
class SimulatedEngine:
    """One engine: prompts are computed one after the other, answers written beside them."""

    name: str
    cache: RadixStateCache
    speed: EngineSpeed
    queue: deque[_SimulatedRequest] = field(default_factory=deque)
    busy: bool = False
    running: int = 0
    busy_seconds: float = 0.0
    computed: int = 0
    prompt_tokens: int = 0
    spans: list[tuple[float, float, float]] = field(default_factory=list)
    """(arrival, start, end) of the prefill of each prompt, in seconds."""

    def work(self, moment: float) -> float:
        """Return the seconds of prefill that were outstanding at `moment`; valid after the run."""
        return sum(end - max(begin, moment) for came, begin, end in self.spans if came <= moment < end)

    def report(self) -> ProbeReport:
        """Return a probe's report: waiting prompt tokens, reduced by the share that was resumed so far."""
        share = self.computed / self.prompt_tokens if self.prompt_tokens else 1.0
        waiting = sum(len(request.token_ids) for request in self.queue) * share
        return ProbeReport(
            True, running=self.running, waiting=len(self.queue), speed=self.speed,
            prompt_tokens_waiting=waiting, room=1e9,
        )  # fmt: skip


class SimulatedFleet:
    """`gateways` before `engines` of `size` each; every event of the simulation in order of time."""

    def __init__(
        self,
        workload: TraceWorkload,
        size: CacheSize,
        engines: int,
        gateways: int,
        speed: float,
        knowledge: Knowledge,
    ) -> None:
        self.now = 0.0
        self.workload, self.knowledge = workload, knowledge
        measured = EngineSpeed(speed, ATTENTION_RATIO, TOKEN_SECONDS)
        self.engines = {
            f"e{n}": SimulatedEngine(f"e{n}", cache_of(size, workload, "RecomputeCost"), measured)
            for n in range(engines)
        }
        self.pools, self.routers = [], []
        for seed in range(gateways):
            pool = Pool(clock=lambda: self.now)
            pool.set_targets(Target(f"http://{name}", name) for name in self.engines)
            index = CacheIndex(self.engines, knowledge)
            weights = RoutingWeights(0.0 if knowledge == "load" else 1.0)
            metrics = GatewayMetrics(pool.snapshot)
            self.pools.append(pool)
            self.routers.append(
                Router(pool, metrics, Random(seed), weights=weights, index=index, clock=lambda: self.now)
            )
        self.first_tokens: list[float] = []
        self.queues: list[list[int]] = []
        """Requests in each engine, at each probe."""
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = itertools.count()
        self._steps = itertools.count(1)

    def run(self) -> dict[str, Any]:
        """Run the whole workload and return the results."""
        rng = Random(0)
        for number, arrival in enumerate(self.workload.arrivals):
            self._schedule(arrival.at, "arrival", (number, arrival, rng.randrange(len(self.pools))))
        end = self.workload.arrivals[-1].at
        for n in range(int(end / PROBE_SECONDS) + 1):
            self._schedule(n * PROBE_SECONDS, "probe", None)
        while self._events:
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(what)
        engines = list(self.engines.values())
        moments = [n * PROBE_SECONDS for n in range(len(self.queues))]
        work = [[engine.work(at) for engine in engines] for at in moments]
        window = round(WINDOW_SECONDS / PROBE_SECONDS)
        balances = {
            "queues": QueueBalance.of(self.queues),
            "queues_of_windows": QueueBalance.of(over_windows(self.queues, window)),
            "work": QueueBalance.of(work, LEAST_SECONDS),
            "work_of_windows": QueueBalance.of(over_windows(work, window), LEAST_SECONDS),
        }
        busy = [engine.busy_seconds for engine in engines]
        waits = sorted(self.first_tokens)
        return {
            "computed": sum(engine.computed for engine in engines),
            "prompt_tokens": sum(engine.prompt_tokens for engine in engines),
            "imbalance": round(max(busy) / statistics.fmean(busy), 3),
            **{name: asdict(each) if each else None for name, each in balances.items()},
            "seconds_over_mean_p99": seconds_over_mean(work),
            "ttft_mean": round(statistics.fmean(waits), 3),
            "ttft_p50": round(waits[len(waits) // 2], 3),
            "ttft_p99": round(waits[int(0.99 * len(waits))], 3),
        }

    def _schedule(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _probe(self, _: None) -> None:
        self.queues.append([len(engine.queue) + engine.running for engine in self.engines.values()])
        self._report()

    def _report(self) -> None:
        for pool in self.pools:
            for engine in self.engines.values():
                pool.report(f"http://{engine.name}", engine.report())

    def _arrival(self, what: tuple[int, Any, int]) -> None:
        number, arrival, gateway = what
        if not number:
            self._report()
        token_ids = prompt(arrival, self.workload.block)
        if next(iter(self.engines.values())).cache.capacity.never_fits(len(token_ids)):
            return
        router = self.routers[gateway]
        prefix = None if self.knowledge == "load" else PromptPrefix.of(token_ids)
        record = router.decide(None, prefix, body_bytes=4 * len(token_ids))
        assert not isinstance(record, NoCandidate)
        engine = self.engines[record.decision.endpoint.name]
        ticket = router.sent(record, prefix)
        engine.queue.append(
            _SimulatedRequest(number, self.now, token_ids, arrival.output_tokens, gateway, ticket)
        )
        self._begin(engine)

    def _begin(self, engine: SimulatedEngine) -> None:
        if engine.busy or not engine.queue:
            return
        request = engine.queue.popleft()
        resumed = serve(engine.cache, request.token_ids, next(self._steps))
        seconds = engine.speed.seconds(resumed, len(request.token_ids))
        engine.busy, engine.running = True, engine.running + 1
        engine.busy_seconds += seconds
        engine.spans.append((request.arrived_at, self.now, self.now + seconds))
        engine.computed += len(request.token_ids) - resumed
        engine.prompt_tokens += len(request.token_ids)
        self._schedule(self.now + seconds, "answered", (engine, request))

    def _answered(self, what: tuple[SimulatedEngine, _SimulatedRequest]) -> None:
        engine, request = what
        self.first_tokens.append(self.now - request.arrived_at)
        self.pools[request.gateway].response_started(f"http://{engine.name}", request.ticket)
        self._schedule(self.now + request.outputs * TOKEN_SECONDS, "ended", what)
        engine.busy = False
        self._begin(engine)

    def _ended(self, what: tuple[SimulatedEngine, _SimulatedRequest]) -> None:
        engine, request = what
        engine.running -= 1
        self.pools[request.gateway].end(f"http://{engine.name}", request.ticket)
