"""Records the size of an autoscaled fleet over a simulated day or hour, for the picture of the documentation.

Run as `python -m benchmarks.fleet_history`; writes JSON and Markdown to benchmarks/results, from which
`python -m benchmarks.pictures` draws. Load, engines and autoscaler are those of `benchmarks.fleet`; unlike
there, the fleet begins with one engine unless `--initial` says otherwise.
"""

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.cache.record import RESULTS, write
from benchmarks.fleet.engine_profile import profile
from benchmarks.fleet.experiment import Experiment
from benchmarks.fleet.holdout_hours import HOLDOUTS, holdout
from benchmarks.fleet.workload import day

from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, flat, scaled

BINS = 120
"""Parts of the time for each of which the picture shows a rate of requests."""


def rates(stream: RequestStream) -> list[float]:
    """Return the requests per second of each of `BINS` equally long parts of a stream."""
    seconds = stream.seconds / BINS
    counts = [0] * BINS
    for arrival in stream.workload.arrivals:
        counts[min(BINS - 1, int(arrival.at / seconds))] += 1
    return [round(count / seconds, 3) for count in counts]


def changes(numbers: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return (second, number) for each number that differs from the one before."""
    return [next(group) for _, group in itertools.groupby(numbers, key=lambda each: each[1])]


def history(experiment: Experiment) -> dict[str, Any]:
    """Return the rates, the sizes of the fleet over time, and the cost relative to the cheapest fixed one."""
    fixed, of_fixed = experiment.cheapest_fixed("ours")
    score, sizes = experiment.run_with_history("ours", "ours")
    until = experiment.stream.seconds
    return {
        "seconds": round(until, 1),
        "requests_per_second": rates(experiment.stream),
        "asked": changes(sizes.targets),
        "ready": changes((at, ready) for at, ready, _ in sizes.supply if at <= until),
        "fixed": fixed,
        "fixed_attainment": of_fixed.sloAttainment,
        "attainment": score.sloAttainment,
        "cost": round(score.gpuSeconds / of_fixed.gpuSeconds, 3),
        "changes": score.changes,
    }


def main() -> None:
    """Simulate the fleet and keep its sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_history", description=__doc__)
    parser.add_argument("--holdout", choices=HOLDOUTS, default="drift", help="the traffic")
    parser.add_argument("--load-scale", type=float, default=1.0, help="requests for each of the hour")
    parser.add_argument("--hours", type=float, help="play it again and again for so long")
    parser.add_argument("--diurnal", action="store_true", help="in the shape of a day")
    parser.add_argument("--engine-profile", default="gpu-48g-assumed", help="a shipped one's name, or a file")
    parser.add_argument("--cold-start", type=float, default=120.0, help="seconds in which an engine starts")
    parser.add_argument("--initial", type=int, default=1, help="engines at the beginning")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    shape = day if options.diurnal else flat
    stream = scaled(holdout(options.holdout), options.load_scale, options.hours, shape)
    slo, engine = Slo(2.0, 0.1), profile(options.engine_profile)
    around = FleetEnvironment(options.cold_start, initial=options.initial)
    found = history(Experiment(stream, engine, slo, around))
    of_fixed = f"{found['fixed_attainment']:.1%} by the cheapest fixed fleet, {found['fixed']} engines"
    lines = [
        f"- {stream.workload.name} x{options.load_scale:g}"
        + (f", again and again for {options.hours:g} hours" if options.hours else "")
        + (", in the shape of a day" if options.diurnal else "")
        + f": {len(stream.workload.arrivals):,} requests",
        f"- engines: {engine.name} ({engine.origin}), which start in {options.cold_start:g} s",
        f"- promised: first token within {slo.ttft:g} s, {1000 * slo.tpot:g} ms per token after it",
        f"- in time: {found['attainment']:.1%}; {of_fixed}",
        f"- GPU-seconds relative to it: {found['cost']:.2f}; changes of the size: {found['changes']}",
        "- the hour `drift` is drawn in docs/assets/scaling-on-a-trace.svg",
    ]
    load = {"workload": stream.workload.name, "load_scale": options.load_scale, "hours": options.hours,
            "diurnal": options.diurnal}  # fmt: skip
    write(f"fleet-history-{options.holdout}", {**load, "profile": engine.name, **found}, lines, options.out)


if __name__ == "__main__":
    main()
