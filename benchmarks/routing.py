"""Several engines behind gateways, simulated: what each way of choosing an engine makes them compute again.

The engines are the product's own state caches with a queue before each and a speed; the gateways are the
product's own router over reports that are up to a second old. Compared with one engine that has the memory of
all. Run as `python -m benchmarks.routing [--trace FILE]`; a minute or two.
"""

import argparse
import heapq
import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.cache.block_trace import generated
from benchmarks.cache.drive import cache_of, drive, serve
from benchmarks.cache.hit_rate import STATE_TOKENS
from benchmarks.cache.record import RESULTS, write

from mamba_cli.bench.traces import parse
from mamba_cli.fleet.cache_index import CacheIndex, Knowledge
from mamba_cli.fleet.cache_size import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, Tokens, prompt, usable
from mamba_cli.fleet.workload import Workload
from mamba_gateway.endpoints import Pool, Report, Target
from mamba_gateway.engine_speed import EngineSpeed
from mamba_gateway.metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.router import Router
from mamba_gateway.routing import NoCandidate
from mamba_gateway.scoring import Weights
from mamba_server.cache.state_cache import StateCache

ALL: tuple[Knowledge, ...] = ("load", "attention", "own", "resumable")
ATTENTION_RATIO = 4.6e-6
"""Of Nemotron Nano 9B v2."""
TOKEN_SECONDS = 0.02
"""Of an answer, while it is written."""
PROBE_SECONDS = 1.0


@dataclass(slots=True)
class _Asked:
    number: int
    at: float
    token_ids: Tokens
    outputs: int
    gateway: int
    ticket: int


@dataclass(slots=True)
class SimulatedEngine:
    """One engine: prompts are computed one after the other, answers written beside them."""

    name: str
    cache: StateCache
    speed: EngineSpeed
    queue: deque[_Asked] = field(default_factory=deque)
    busy: bool = False
    running: int = 0
    busy_seconds: float = 0.0
    computed: int = 0
    prompt_tokens: int = 0

    def report(self) -> Report:
        """As its metrics say it: of waiting prompts so much is taken off as was resumed before."""
        share = self.computed / self.prompt_tokens if self.prompt_tokens else 1.0
        waiting = sum(len(asked.token_ids) for asked in self.queue) * share
        return Report(
            True, running=self.running, waiting=len(self.queue), speed=self.speed,
            prompt_tokens_waiting=waiting, room=1e9,
        )  # fmt: skip


def queue_imbalance(queues: Sequence[Sequence[float]], least: float = 4.0) -> float | None:
    """99th percentile of the longest queue by the mean, over the moments at which engines had `least`
    requests or more on average; None without any. Of few requests one more is much: a queue of 1 beside
    three empty ones is 4 times the mean."""
    seen = sorted(max(now) / statistics.fmean(now) for now in queues if statistics.fmean(now) >= least)
    return round(seen[int(0.99 * len(seen))], 2) if seen else None


class Fleet:
    """`gateways` before `engines` of `size` each; every event of the simulation in order of time."""

    def __init__(
        self,
        workload: Workload,
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
            weights = Weights(0.0 if knowledge == "load" else 1.0)
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
        """The whole workload; what came out."""
        rng = Random(0)
        for number, arrival in enumerate(self.workload.arrivals):
            self._at(arrival.at, "arrival", (number, arrival, rng.randrange(len(self.pools))))
        end = self.workload.arrivals[-1].at
        for n in range(int(end / PROBE_SECONDS) + 1):
            self._at(n * PROBE_SECONDS, "probe", None)
        while self._events:
            self.now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(what)
        engines = list(self.engines.values())
        busy = [engine.busy_seconds for engine in engines]
        waits = sorted(self.first_tokens)
        return {
            "computed": sum(engine.computed for engine in engines),
            "prompt_tokens": sum(engine.prompt_tokens for engine in engines),
            "imbalance": round(max(busy) / statistics.fmean(busy), 3),
            "queue_imbalance_p99": queue_imbalance(self.queues),
            "ttft_mean": round(statistics.fmean(waits), 3),
            "ttft_p50": round(waits[len(waits) // 2], 3),
            "ttft_p99": round(waits[int(0.99 * len(waits))], 3),
        }

    def _at(self, when: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (when, next(self._order), kind, what))

    def _probe(self, _: None) -> None:
        self.queues.append([len(engine.queue) + engine.running for engine in self.engines.values()])
        for pool in self.pools:
            for engine in self.engines.values():
                pool.report(f"http://{engine.name}", engine.report())

    def _arrival(self, what: tuple[int, Any, int]) -> None:
        number, arrival, gateway = what
        if not number:
            self._probe(None)
        token_ids = prompt(arrival, self.workload.block)
        if next(iter(self.engines.values())).cache.never_fits(len(token_ids)):
            return
        router = self.routers[gateway]
        known = None if self.knowledge == "load" else PromptPrefix.of(token_ids)
        record = router.decide(None, known, body_bytes=4 * len(token_ids))
        assert not isinstance(record, NoCandidate)
        engine = self.engines[record.decision.endpoint.name]
        ticket = router.sent(record, known)
        engine.queue.append(_Asked(number, self.now, token_ids, arrival.output_tokens, gateway, ticket))
        self._begin(engine)

    def _begin(self, engine: SimulatedEngine) -> None:
        if engine.busy or not engine.queue:
            return
        asked = engine.queue.popleft()
        resumed = serve(engine.cache, asked.token_ids, next(self._steps))
        seconds = engine.speed.seconds(resumed, len(asked.token_ids))
        engine.busy, engine.running = True, engine.running + 1
        engine.busy_seconds += seconds
        engine.computed += len(asked.token_ids) - resumed
        engine.prompt_tokens += len(asked.token_ids)
        self._at(self.now + seconds, "answered", (engine, asked))

    def _answered(self, what: tuple[SimulatedEngine, _Asked]) -> None:
        engine, asked = what
        self.first_tokens.append(self.now - asked.at)
        self.pools[asked.gateway].answered(f"http://{engine.name}", asked.ticket)
        self._at(self.now + asked.outputs * TOKEN_SECONDS, "ended", what)
        engine.busy = False
        self._begin(engine)

    def _ended(self, what: tuple[SimulatedEngine, _Asked]) -> None:
        engine, asked = what
        engine.running -= 1
        self.pools[asked.gateway].end(f"http://{engine.name}", asked.ticket)


def compare(
    workload: Workload,
    slots: int,
    kv: int,
    engines: int,
    gateways: int,
    utilization: float,
    ways: Sequence[Knowledge] = ALL,
) -> list[dict[str, Any]]:
    """One row for each way of choosing. `utilization`: of the engines if they had no cache at all."""
    size = CacheSize(slots, kv, STATE_TOKENS if kv else 0)
    whole = CacheSize(engines * slots, engines * kv, STATE_TOKENS if kv else 0)
    together = drive(workload, cache_of(whole, workload, "RecomputeCost"))
    tokens = sum(arrival.input_tokens for arrival in workload.arrivals)
    seconds = workload.arrivals[-1].at - workload.arrivals[0].at
    speed = tokens / seconds / engines / utilization
    rows = []
    for knowledge in ways:
        found = Fleet(workload, size, engines, gateways, speed, knowledge).run()
        found["relative"] = round(found["computed"] / (together.prompt_tokens - together.cached_tokens), 3)
        rows.append({"workload": workload.name, "knowledge": knowledge, "slots": slots, **found})
        print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the Markdown table."""
    shown = (
        row["workload"], row["slots"], row["knowledge"], f"{row['computed'] / row['prompt_tokens']:.1%}",
        row["relative"], row["imbalance"], row["queue_imbalance_p99"],
        row["ttft_mean"], row["ttft_p50"], row["ttft_p99"],
    )  # fmt: skip
    return f"| {' | '.join(map(str, shown))} |"


HEAD = (
    "| workload | slots | goes by | computed | to one | imbalance | of queues | TTFT mean s | p50 | p99 |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake-format JSON lines; else a generated one")
    parser.add_argument("--slots", type=int, nargs="+", default=(50, 400), help="state slots of each engine")
    parser.add_argument("--kv", type=int, default=500_000, help="KV tokens of each engine beside them")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument("--utilization", type=float, default=1.2)
    parser.add_argument("--requests", type=int, default=2000, help="the first so many; 0 = all of a trace")
    parser.add_argument("--ways", nargs="+", choices=ALL, default=ALL, help="what gateways go by")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    if asked.trace is None:
        workload = Workload("generated", BLOCK, generated(asked.requests or 2000))
    else:
        with asked.trace.open(encoding="utf-8") as lines:
            workload = Workload(asked.trace.stem, BLOCK, usable(parse(lines))[: asked.requests or None])
    rows = [
        row
        for slots in asked.slots
        for row in compare(
            workload, slots, asked.kv, asked.engines, asked.gateways, asked.utilization, asked.ways
        )
    ]
    facts = [
        f"- {asked.engines} engines of {asked.kv:,} KV tokens beside the slots, {asked.gateways} gateways",
        f"- without any cache the engines would be used to {asked.utilization:.0%}",
        "- to one: tokens computed, by those of one engine with the memory of all",
        "- imbalance: busy time of the busiest engine by the mean",
        "- of queues: most requests in an engine by the mean, p99 of the moments with 4 an engine or more",
    ]
    found = {"rows": rows, "gateways": asked.gateways, "engines": asked.engines}
    write(f"routing-{workload.name}", found, [*facts, "", *HEAD, *map(line, rows), ""], asked.out)


if __name__ == "__main__":
    main()
