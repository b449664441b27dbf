"""Simulate a fleet over a trace: `python -m benchmarks.fleet --trace FILE [--router R] [--scaler S]`.

Prints one run's score as a table or as JSON; with `--compare` the table of routers and autoscalers, which is
also written, with a plot, to `--out`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.workloads import GENERATED
from benchmarks.fleet.comparison import HEAD, Row, compare_and_print, line
from benchmarks.fleet.duration import duration
from benchmarks.fleet.engine_profile import profile
from benchmarks.fleet.experiment import SCALERS, Experiment, Progress
from benchmarks.fleet.holdout_hours import HOLDOUTS, holdout
from benchmarks.fleet.plots import draw
from benchmarks.fleet.routers import ROUTERS, RouterName
from benchmarks.fleet.score import NAMED
from benchmarks.fleet.tuning_hours import PRACTICE, practice
from benchmarks.fleet.wins_and_losses import verdict
from benchmarks.fleet.workload import day, generated
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from mamba_cli.bench.traces import Format, TraceError
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, flat, read, scaled, spliced

STEPS = 10
"""Lines of progress where there is no terminal."""


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    source = command_line.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="recorded requests")
    source.add_argument(
        "--holdout", nargs="+", choices=HOLDOUTS, help="generated traffic that no default was chosen by"
    )
    source.add_argument(
        "--practice", nargs="+", choices=PRACTICE, help="generated traffic that some were chosen by"
    )
    source.add_argument("--workload", choices=[make.__name__ for make in GENERATED], help="generated ones")
    command_line.add_argument("--requests", type=int, default=4000, help="of a generated workload")
    command_line.add_argument(
        "--format", choices=("mooncake", "azure"), help="of the trace; default: as found"
    )
    command_line.add_argument("--router", choices=ROUTERS, default="ours")
    command_line.add_argument("--scaler", choices=SCALERS, default="ours")
    command_line.add_argument(
        "--slo-ttft", type=duration, default=2.0, metavar="TIME", help="such as 2s; default 2s"
    )
    command_line.add_argument(
        "--slo-tpot", type=duration, default=0.1, metavar="TIME", help="such as 100ms; default 100ms"
    )
    command_line.add_argument(
        "--engine-profile", default="gpu-80g-assumed", help="a shipped one's name, or a file"
    )
    command_line.add_argument(
        "--load-scale", type=float, nargs="+", default=[1.0], help="requests for each of the trace"
    )
    command_line.add_argument(
        "--splice", type=duration, metavar="TIME", help="play pieces of so long in another order, by the seed"
    )
    command_line.add_argument(
        "--hours", type=float, help="play it for so long, again and again; default: once"
    )
    command_line.add_argument("--diurnal", action="store_true", help="with the shape of a day")
    command_line.add_argument("--seed", type=int, default=0)
    command_line.add_argument(
        "--initial",
        type=int,
        help="engines at the beginning; of fixed: all the time; default: the cheapest fixed fleet's",
    )
    command_line.add_argument("--min", type=int, default=1, help="fewest engines")
    command_line.add_argument("--max", type=int, default=64, help="most engines")
    command_line.add_argument(
        "--cold-start", type=duration, default=120.0, metavar="TIME", help="of an engine; default 120s"
    )
    command_line.add_argument("--failures", type=float, default=0.0, help="deaths per engine and hour")
    command_line.add_argument(
        "--spot", type=float, default=0.0, help="losses with two minutes' notice per engine and hour"
    )
    command_line.add_argument("--output", choices=("table", "json"), default="table")
    command_line.add_argument(
        "--compare", action="store_true", help="all routers and autoscalers, at each load scale"
    )
    command_line.add_argument(
        "--scalers",
        nargs="+",
        choices=SCALERS,
        default=SCALERS,
        help="those that --compare runs; default: all",
    )
    command_line.add_argument("--jobs", type=int, default=1, help="loads that --compare runs at once")
    command_line.add_argument("--out", type=Path, default=RESULTS, help="folder for what --compare writes")
    return command_line


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """Yield a callback that shows progress on standard error: a bar, or a line for each tenth."""
    if sys.stderr.isatty():
        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=1.0)
            yield lambda share: bar.update(task, completed=share)
        return
    last = 0

    def print_step(share: float) -> None:
        nonlocal last
        if (step := int(share * STEPS)) > last:
            print(f"{what}: {share:.0%}", file=sys.stderr, flush=True)
        last = step

    yield print_step


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked; 0, or 2 for what cannot be run."""
    options = parser().parse_args(arguments)
    try:
        experiments = [
            (scale, _experiment(options, source, scale))
            for source in _sources(options)
            for scale in options.load_scale
        ]
    except (TraceError, UnicodeDecodeError) as error:
        print(f"error: {options.trace}: {error}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.compare:
        _compare(options, experiments)
        return 0
    for scale, experiment in experiments:
        with progress_bar(f"{options.router}, {options.scaler}, x{scale:g}") as progress:
            begun = experiment
            if options.initial is None:
                begun = experiment.starting_with(experiment.cheapest_fixed("ours", progress)[0])
            result = asdict(begun.run(options.router, options.scaler, progress))
        if options.output == "json":
            print(json.dumps({name: result[name] for name in NAMED}))
        else:
            table = Table(
                title=f"{experiment.stream.workload.name} x{scale:g}: {options.router}, {options.scaler}"
            )
            table.add_column("score")
            table.add_column("value", justify="right")
            for name, value in result.items():
                table.add_row(name, f"{value:,}")
            Console().print(table)
    return 0


def _sources(options: argparse.Namespace) -> list[RequestStream]:
    if options.trace:
        return [_trace(options.trace, options.format)]
    if options.holdout:
        return [holdout(name) for name in options.holdout]
    if options.practice:
        return [practice(name) for name in options.practice]
    return [generated(options.workload, options.requests, options.seed)]


def _trace(path: Path, expected: Format | None) -> RequestStream:
    """Read the trace, and print the assumed unit of its times on standard error."""
    trace = read(path, expected)
    count = len(trace.workload.arrivals)
    if not count:
        raise TraceError("no request that can be played: prompts of 1 token at least, whole in its hash_ids")
    print(f"{path.name}: {count:,} requests in {trace.seconds:,.1f} s", file=sys.stderr, flush=True)
    return trace


def _experiment(options: argparse.Namespace, source: RequestStream, scale: float) -> Experiment:
    initial = options.min if options.initial is None else options.initial
    if not 1 <= options.min <= initial <= options.max:
        raise ValueError(
            f"engines: 1 <= --min {options.min} <= --initial {initial} <= --max {options.max} must hold"
        )
    if options.splice is not None:
        source = spliced(source, options.splice, options.seed)
    whole = scaled(source, scale, options.hours, day if options.diurnal else flat, options.seed)
    if not whole.workload.arrivals:
        raise ValueError("no request is left at this load scale: take a larger one, or more hours")
    conditions = FleetEnvironment(
        options.cold_start,
        failures=options.failures,
        spot=options.spot,
        least=options.min,
        most=options.max,
        initial=initial,
    )
    return Experiment(
        whole,
        profile(options.engine_profile),
        Slo(options.slo_ttft, options.slo_tpot),
        conditions,
        options.seed,
    )


def _compare(options: argparse.Namespace, experiments: Sequence[tuple[float, Experiment]]) -> None:
    # Generated hours are for autoscalers; another router with the product's autoscaler says nothing of them.
    generated_hours = options.holdout or options.practice
    routers: Sequence[RouterName] = ("ours",) if generated_hours else ROUTERS
    loads = [(f"{each.stream.workload.name} x{scale:g}", each) for scale, each in experiments]
    rows: list[Row] = []
    if options.jobs == 1:
        for load in loads:
            with progress_bar(load[0]) as progress:
                rows += compare_and_print(load, routers, progress, options.scalers)
    else:
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            for result in pool.map(
                partial(compare_and_print, routers=routers, scalers=options.scalers), loads
            ):
                rows += result
    first = experiments[0][1]
    slo, around = first.slo, first.conditions
    facts = [
        f"- engines: {first.profile.name} ({first.profile.origin})",
        f"- promised: first token within {slo.ttft:g} s, {1000 * slo.tpot:g} ms per token after it",
        f"- {around.least} to {around.most} engines, which start in {around.cold_start:g} s",
    ]
    plain = [row.plain() for row in rows]
    stem = f"fleet-{_result_name(options, first)}"
    path = write(
        stem,
        {"profile": first.profile.name, "rows": plain},
        [*facts, "", *HEAD, *map(line, rows), "", *verdict(rows)],
        options.out,
    )
    draw(rows, path.with_suffix(".svg"))
    print(json.dumps(plain) if options.output == "json" else "\n".join([*HEAD, *map(line, rows)]))


def _result_name(options: argparse.Namespace, first: Experiment) -> str:
    if options.holdout or options.practice:
        return "holdouts" if options.holdout else "practice"
    return first.stream.workload.name + ("-spliced" if options.splice is not None else "")


if __name__ == "__main__":
    sys.exit(main())
