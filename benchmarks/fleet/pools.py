"""Two pools over a trace: `python -m benchmarks.fleet.pools --trace FILE [--load-scale 1 2]`.

Compares the product's autoscaler, which decides on each pool, with the cheapest fixed pair of pools that
keeps the objective, and with unified engines. Costs are GPU-seconds; each autoscaler begins with its cheapest
fixed fleet.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cache.record import RESULTS, write
from benchmarks.fleet.engine_profile import profile
from benchmarks.fleet.experiment import Experiment
from benchmarks.fleet.holdout_hours import HOLDOUTS, holdout
from benchmarks.fleet.scalers.own import OwnScaler
from benchmarks.fleet.score import reversals
from benchmarks.fleet.tuning_hours import PRACTICE, practice

from mamba_api.choices import Role
from mamba_cli.fleet.engine_group import FixedSize
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.pooled_simulation import LinkSpeed, Network, PooledSimulation, PoolPlan
from mamba_cli.fleet.slo import GOAL, Slo
from mamba_cli.fleet.workload import RequestStream, read, scaled

POOLS: tuple[Role, Role] = ("prefill", "decode")
Pair = tuple[int, int]
"""Numbers of prefill and of decode engines."""


@dataclass(frozen=True, slots=True)
class PoolScore:
    """Result of one run of two pools."""

    attained: float
    """Share of requests within the objective."""
    gpu_seconds: float
    prefill: float
    """Mean number of prefill engines."""
    decode: float
    """Mean number of decode engines."""
    changes: dict[str, int]
    """Changes of the number of engines, by pool."""
    reversals: dict[str, int]
    """Changes of direction, by pool."""
    handed_over: int
    recomputed: int
    """Prompts that a decode engine computed because their state did not arrive."""


@dataclass(frozen=True, slots=True)
class PoolExperiment:
    """Conditions that all runs of two pools share."""

    stream: RequestStream
    profile: EngineProfile
    slo: Slo
    conditions: FleetEnvironment
    link: LinkSpeed
    seed: int = 0

    def fixed(self, pair: Pair) -> PoolScore | None:
        """Return the score of a fixed pair; None if it does not keep the objective."""
        plans = {
            pool: PoolPlan(FixedSize(count), replace(self.conditions, initial=count), self._ttft(pool))
            for pool, count in zip(POOLS, pair, strict=True)
        }
        run = self._run(plans, hopeless=True)
        if run.given_up:
            return None
        result = pool_score(run)
        return result if result.attained >= GOAL else None

    def scaled(self, pair: Pair) -> PoolScore:
        """Return the score of the product's autoscaler, beginning with `pair`."""
        plans = {
            pool: PoolPlan(
                OwnScaler(
                    self.profile,
                    ttft=self._ttft(pool) if pool == "prefill" else None,
                    tpot=self.slo.tpot if pool == "decode" else None,
                    least=self.conditions.least,
                    most=self.conditions.most,
                    bypassed=pool == "prefill",
                ),
                replace(self.conditions, initial=count),
                self._ttft(pool),
            )
            for pool, count in zip(POOLS, pair, strict=True)
        }
        return pool_score(self._run(plans))

    def cheapest(self, progress: Callable[[Pair], None] = lambda _: None) -> tuple[Pair, PoolScore]:
        """Return the pair with the fewest engines that keeps the objective, and its score.

        More engines of either pool never do worse, so the search begins with the fewest of each pool beside
        plenty of the other.
        """
        most = self.conditions.most
        tried: dict[Pair, PoolScore | None] = {}

        def result(pair: Pair) -> PoolScore | None:
            if pair not in tried:
                progress(pair)
                tried[pair] = self.fixed(pair)
            return tried[pair]

        prefill = _smallest(lambda count: result((count, most)) is not None, most)
        decode = _smallest(lambda count: result((most, count)) is not None, most)
        if prefill is None or decode is None:
            raise ValueError(f"{most} engines of each pool do not keep the objective")
        for more in range(2 * most):
            for extra in range(more + 1):
                pair = (prefill + more - extra, decode + extra)
                if max(pair) <= most and (found := result(pair)) is not None:
                    return pair, found
        raise ValueError("no pair keeps the objective")

    def _ttft(self, pool: Role) -> float:
        """Return the target of a pool: prompts leave time for two hand-overs of the mean prompt."""
        if pool == "decode":
            return self.slo.ttft
        arrivals = self.stream.workload.arrivals
        mean = sum(arrival.input_tokens for arrival in arrivals) / max(1, len(arrivals))
        seconds = Network(self.link, self.profile).size(round(mean)) / self.link.bytes_per_second
        return self.slo.ttft - 2 * (self.link.latency + seconds + self.profile.step_seconds)

    def _run(self, plans: Mapping[Role, PoolPlan], *, hopeless: bool = False) -> PooledSimulation:
        run = PooledSimulation(
            self.stream, self.profile, plans, self.slo, self.link, seed=self.seed
        )  # fmt: skip
        run.run(least_attainment=GOAL if hopeless else None)
        return run


def pool_score(run: PooledSimulation) -> PoolScore:
    """Score a finished run."""
    judged = [request for request in run.requests if request.engine]
    until = run.stream.seconds
    seconds = {pool: sum(pod.gpu_seconds(until) for pod in run.pods if pod.role == pool) for pool in POOLS}
    targets = {pool: [count for _, count in run.groups[pool].history.targets] for pool in POOLS}
    return PoolScore(
        attained=round(sum(map(run.slo.attained, judged)) / max(1, len(judged)), 4),
        gpu_seconds=round(sum(seconds.values()), 1),
        prefill=round(seconds["prefill"] / until, 2),
        decode=round(seconds["decode"] / until, 2),
        changes={pool: len(counts) - 1 for pool, counts in targets.items()},
        reversals={pool: reversals(counts) for pool, counts in targets.items()},
        handed_over=run.handed_over,
        recomputed=run.recomputed,
    )


def _smallest(attains: Callable[[int], bool], most: int) -> int | None:
    high = 1
    while not attains(high):
        if high == most:
            return None
        high = min(2 * high, most)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attains(middle) else (middle, high)
    return high


HEAD = (
    "| workload | engines | attained | GPU-seconds | to fixed pair | changes | reversals | recomputed |",
    "| --- | --- | --- | --- | --- | --- | --- | --- |",
)


def compared(
    name: str, experiment: PoolExperiment, *, unified: bool, on_row: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Return a row for the cheapest fixed pair, for the autoscaler, and for unified engines."""
    rows: list[dict[str, Any]] = []

    def add(what: str, engines: str, attained: float, seconds: float, **more: Any) -> None:
        rows.append(
            {"workload": name, "what": what, "engines": engines, "attained": attained, "gpuSeconds": seconds,
             "cost": round(seconds / base, 3), **more}
        )  # fmt: skip
        on_row(rows[-1])

    pair, fixed = experiment.cheapest(lambda pair: print(f"{name}: {pair}", file=sys.stderr, flush=True))
    base = fixed.gpu_seconds
    add("fixed pair", f"{pair[0]} + {pair[1]}", fixed.attained, base, score=asdict(fixed))
    own = experiment.scaled(pair)
    add("ours", f"{own.prefill} + {own.decode}", own.attained, own.gpu_seconds, score=asdict(own))
    if unified:
        alike = Experiment(
            experiment.stream, experiment.profile, experiment.slo, experiment.conditions, experiment.seed
        )
        count, score = alike.cheapest_fixed("ours")
        add("fixed, unified", str(count), score.sloAttainment, score.gpuSeconds)
        one = alike.starting_with(count).run("ours", "ours")
        add("ours, unified", str(one.meanReplicas), one.sloAttainment, one.gpuSeconds)
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Return one row of the Markdown table."""
    score = row.get("score") or {}
    counts = [
        " + ".join(str(score[name][pool]) for pool in POOLS) if score else "-"
        for name in ("changes", "reversals")
    ]
    cells = (
        row["workload"], f"{row['what']}: {row['engines']}", f"{row['attained']:.1%}",
        f"{row['gpuSeconds']:,.0f}", f"{row['cost']:.2f}", *counts, score.get("recomputed", "-"),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.fleet.pools", description=__doc__)
    command_line.add_argument("--trace", type=Path, nargs="*", default=[], help="recorded requests")
    command_line.add_argument("--practice", nargs="*", choices=PRACTICE, default=[], help="generated hours")
    command_line.add_argument("--holdout", nargs="*", choices=HOLDOUTS, default=[], help="generated hours")
    command_line.add_argument("--load-scale", type=float, nargs="+", default=[1.0])
    command_line.add_argument("--engine-profile", default="gpu-80g-assumed")
    command_line.add_argument("--slo-ttft", type=float, default=2.0, help="seconds")
    command_line.add_argument("--slo-tpot", type=float, default=0.1, help="seconds")
    command_line.add_argument("--gbytes", type=float, default=10.0, help="10^9 bytes per second of a link")
    command_line.add_argument("--most", type=int, default=16, help="engines of a pool")
    command_line.add_argument("--no-unified", action="store_true", help="leave unified engines out")
    command_line.add_argument("--name", default="pools", help="of the files with the results")
    command_line.add_argument("--out", type=Path, default=RESULTS)
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and write the tables."""
    options = parser().parse_args(arguments)
    sources = [read(path) for path in options.trace]
    sources += [practice(name) for name in options.practice]
    sources += [holdout(name) for name in options.holdout]
    rows: list[dict[str, Any]] = []
    for source in sources:
        for scale in options.load_scale:
            experiment = PoolExperiment(
                scaled(source, scale) if scale != 1.0 else source,
                profile(options.engine_profile),
                Slo(options.slo_ttft, options.slo_tpot),
                FleetEnvironment(most=options.most),
                LinkSpeed(options.gbytes * 1e9),
            )
            rows += compared(
                f"{source.workload.name} x{scale:g}", experiment, unified=not options.no_unified,
                on_row=lambda row: print(line(row), file=sys.stderr, flush=True),
            )  # fmt: skip
    facts = [
        f"- engines: {options.engine_profile}, links of {options.gbytes:g} GB/s",
        f"- promised: first token within {options.slo_ttft:g} s, {1000 * options.slo_tpot:g} ms per token",
        "- ttftTarget of the prefill pool: the same, less two hand-overs of the mean prompt",
        "- each autoscaler begins with its cheapest fixed fleet",
    ]
    write(f"fleet-{options.name}", {"rows": rows}, [*facts, "", *HEAD, *map(line, rows), ""], options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
