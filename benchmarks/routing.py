"""Several engines behind gateways, simulated: what each way of choosing an engine makes them compute again.

A fleet (`simulated_fleet`) replays a workload for each way, beside one engine that has the memory of
all. Run as `python -m benchmarks.routing [--trace FILE] [--workload NAME ...] [--seeds N ...]`; a quarter
of a minute for each workload and seed.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cache.block_trace import generated
from benchmarks.cache.cache_run import cache_of, drive
from benchmarks.cache.hit_rate import STATE_TOKENS
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.workloads import GENERATED
from benchmarks.queue_balance import LEAST, LEAST_SECONDS, WINDOW_SECONDS
from benchmarks.simulated_fleet import SimulatedFleet

from mamba_cli.bench.traces import Arrival, parse
from mamba_cli.fleet.cache_index import Knowledge
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, usable
from mamba_cli.fleet.workload import TraceWorkload

ALL: tuple[Knowledge, ...] = ("load", "attention", "own", "resumable")


def _questions(requests: int, seed: int) -> TraceWorkload:
    return TraceWorkload("generated", BLOCK, generated(requests, seed))


MADE: dict[str, Callable[[int, int], TraceWorkload]] = {
    "generated": _questions,
    **{make.__name__: make for make in GENERATED},
}
"""By name: a workload of so many requests, by seed."""


def compare(
    workload: TraceWorkload,
    slots: int,
    kv: int,
    engines: int,
    gateways: int,
    use: float,
    ways: Sequence[Knowledge] = ALL,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Return a row for each way of choosing. `use`: utilization if no prompt were computed twice."""
    size = CacheSize(slots, kv, STATE_TOKENS if kv else 0)
    whole = CacheSize(engines * slots, engines * kv, STATE_TOKENS if kv else 0)
    together = drive(workload, cache_of(whole, workload, "RecomputeCost"))
    least = together.prompt_tokens - together.cached_tokens
    seconds = workload.arrivals[-1].at - workload.arrivals[0].at
    speed = least / seconds / engines / use
    rows = []
    for knowledge in ways:
        result = SimulatedFleet(workload, size, engines, gateways, speed, knowledge).run()
        result["relative"] = round(result["computed"] / least, 3)
        rows.append(
            {"workload": workload.name, "seed": seed, "knowledge": knowledge, "slots": slots, **result}
        )
        print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table."""
    queues, *others = (
        row[name] or dict.fromkeys(("share", "p50", "p99"), "-")
        for name in ("queues", "queues_of_windows", "work", "work_of_windows")
    )
    cells = (
        row["workload"], row["seed"], row["slots"], row["knowledge"],
        f"{row['computed'] / row['prompt_tokens']:.1%}", row["relative"], row["imbalance"],
        queues["share"], queues["p50"], queues["p99"], *(each["p99"] for each in others),
        row["seconds_over_mean_p99"],
        row["ttft_mean"], row["ttft_p50"], row["ttft_p99"],
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


_COLUMNS = (
    "workload", "seed", "slots", "goes by", "computed", "to one", "busy", "share", "queues p50", "p99",
    "of 10 s", "by seconds", "of 10 s", "s over p99", "TTFT mean s", "p50", "p99",
)  # fmt: skip
HEAD = (f"| {' | '.join(_COLUMNS)} |", f"|{' --- |' * len(_COLUMNS)}")


def workloads(options: argparse.Namespace) -> Iterator[tuple[int, TraceWorkload]]:
    """Yield each workload with its seed; a trace is cut into parts, one after the other."""
    if options.trace is not None:
        with options.trace.open(encoding="utf-8") as lines:
            arrivals = usable(parse(lines))
        size = options.requests or len(arrivals)
        for seed in options.seeds:
            if part := arrivals[seed * size : (seed + 1) * size]:
                yield seed, TraceWorkload(options.trace.stem, BLOCK, _from_zero(part))
    for name in options.workload:
        for seed in options.seeds:
            yield seed, MADE[name](options.requests or 2000, seed)


def _from_zero(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [replace(arrival, at=arrival.at - arrivals[0].at) for arrival in arrivals]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run all, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake-format JSON lines")
    parser.add_argument("--workload", nargs="*", choices=MADE, help="made ones; without a trace: generated")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0,), help="of a trace: which parts of it")
    parser.add_argument("--slots", type=int, nargs="+", default=(50, 400), help="state slots of each engine")
    parser.add_argument("--kv", type=int, default=500_000, help="KV tokens of each engine beside them")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument(
        "--use", type=float, default=0.85, help="of the engines, if they computed as little as one does"
    )
    parser.add_argument("--requests", type=int, default=2000, help="of each; 0 = all of a trace")
    parser.add_argument("--ways", nargs="+", choices=ALL, default=ALL, help="what gateways go by")
    parser.add_argument("--name", default="routing", help="of the files that are written")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.workload is None:
        options.workload = () if options.trace else ("generated",)
    rows = [
        row
        for seed, workload in workloads(options)
        for slots in options.slots
        for row in compare(
            workload, slots, options.kv, options.engines, options.gateways, options.use, options.ways, seed
        )
    ]
    used = f"{options.use:.0%}"
    facts = [
        f"- {options.engines} engines of {options.kv:,} KV tokens and the slots, {options.gateways} gateways",
        f"- used to {used} if they computed as little as one engine with the memory of all does",
        "- to one: tokens computed, by those of that one",
        "- busy: time for which the busiest engine computes, by the mean",
        f"- queues: most requests in an engine by the mean; share: of moments, with {LEAST:g} each or more",
        f"- of 10 s: p99 of their means over {WINDOW_SECONDS:g} s, one after the other",
        f"- by seconds: p99 of the same with seconds of prompts, of {LEAST_SECONDS:g} s each or more",
        "- s over: seconds of prompts in the busiest engine beyond the mean, over all moments",
    ]
    record = {"rows": rows, "gateways": options.gateways, "engines": options.engines, "use": options.use}
    write(options.name, record, [*facts, "", *HEAD, *map(line, rows), ""], options.out)


if __name__ == "__main__":
    main()
