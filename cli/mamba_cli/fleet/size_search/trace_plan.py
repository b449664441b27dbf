"""`mambaserve plan FILE --trace TRACE`: reads the question, runs the sizing and shows its progress."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from mamba_api.errors import InvalidDuration
from mamba_api.quantity import parse_duration
from mamba_cli.bench.trace_units import TraceUnits
from mamba_cli.bench.traces import Format, TraceError
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.fleet.size_search.chart import chart
from mamba_cli.fleet.size_search.gpu import chosen
from mamba_cli.fleet.size_search.sizing import SizingRequest, size
from mamba_cli.fleet.size_search.sizing_view import SizingReport
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, busiest, read
from mamba_cli.local.plan_source import plan_source
from mamba_cli.local.planning import PlanFlags, PlanOutcome
from mamba_planner.constraints import Workload

SECONDS_PER_DAY = 86_400.0
MAX_TRACE_SECONDS = 7 * SECONDS_PER_DAY
"""Longest trace in seconds that is simulated: seconds without a request take time as well."""


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """Options of the command that have a meaning only with a trace."""

    trace: Path
    expected: Format | None
    ttft: str | None
    tpot: str | None
    gpus: list[str]
    most: int
    requests: int
    """Number of requests to simulate; 0 means all."""
    seed: int
    plot: Path | None
    units: TraceUnits


def plan_trace(source: str, plan: PlanFlags, flags: TraceFlags) -> SizingReport:
    """Size a fleet for a trace; `plan` has the options for one engine.

    Raises:
        InvalidInput: An option, the trace or the source is wrong.
        RunFailed: The plot cannot be written.
    """
    slo = Slo(_seconds("--slo-ttft", flags.ttft), _seconds("--slo-tpot", flags.tpot))
    gpus = chosen(flags.gpus)
    whole = _trace(flags.trace, flags.expected, flags.units)
    outcome = _outcome(source, plan)
    stream = busiest(whole, flags.requests) if flags.requests else whole
    if stream.seconds > MAX_TRACE_SECONDS:
        times = [arrival.at for arrival in stream.workload.arrivals]
        guess = flags.units.guess(times) if stream.identity else ""
        days, most = stream.seconds / SECONDS_PER_DAY, MAX_TRACE_SECONDS / SECONDS_PER_DAY
        raise InvalidInput(
            f"--trace: {flags.trace}: {len(times):,} requests in {days:,.0f} days; at most {most:.0f} days "
            f"are simulated{guess}; --requests takes a shorter part"
        )
    question = SizingRequest(
        outcome.model, outcome.constraints, outcome.weights,
        outcome.plan.workload if outcome.plan is not None else Workload(),
        stream, slo, gpus, flags.most, flags.seed,
    )  # fmt: skip
    with _progress_display() as progress:
        result = size(question, progress)
    hours = whole.seconds / 3600
    report = SizingReport(
        outcome.name, flags.trace.name, len(whole.workload.arrivals), len(stream.workload.arrivals), hours,
        slo, result, stream.identity, flags.seed, outcome.not_served, whole.left_out,
    )  # fmt: skip
    if flags.plot is not None:
        unit = "cost of the trace" if report.priced else "GPU-hours of the trace"
        try:
            flags.plot.write_text(chart(result, hours, unit), encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"--plot: {flags.plot}: {error.strerror}") from error
    return report


def _seconds(option: str, text: str | None) -> float:
    if text is None:
        raise InvalidInput(f"--trace needs {option}: an objective such as --slo-ttft 2s --slo-tpot 100ms")
    try:
        seconds = parse_duration(text)
    except InvalidDuration as error:
        raise InvalidInput(f"{option}: {error}") from error
    if not seconds > 0:
        raise InvalidInput(f"{option}: must be above 0")
    return seconds


def _trace(path: Path, expected: Format | None, units: TraceUnits) -> RequestStream:
    try:
        stream = read(path, expected, units)
    except FileNotFoundError:
        raise InvalidInput(f"--trace: {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--trace: {path}: cannot be read: {error}") from error
    except TraceError as error:
        raise InvalidInput(f"--trace: {path}: {error}") from error
    if not stream.seconds > 0:
        raise InvalidInput(f"--trace: {path}: the trace must have requests at two different times at least")
    return stream


def _outcome(source: str, plan: PlanFlags) -> PlanOutcome:
    outcomes = plan_source(source, plan)
    if any(outcome.role != "unified" for outcome in outcomes):
        raise InvalidInput(
            f"{source}: --trace sizes unified engines, and this has two pools: remove disaggregation"
        )
    if len(outcomes) != 1:
        raise InvalidInput(f"{source}: --trace plans one model at a time, but this has {len(outcomes)}")
    return outcomes[0]


@contextmanager
def _progress_display() -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows progress on standard error: a bar on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda step, share: print(f"{share:4.0%} {step}", file=sys.stderr, flush=True)  # noqa: T201
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda step, share: bar.update(task, description=step, completed=share)
