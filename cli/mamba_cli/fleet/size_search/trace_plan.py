"""`mambaserve plan FILE --trace TRACE`: reads what is asked, has it sized, and says how far it is."""

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
from mamba_cli.bench.traces import TraceError
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.fleet.size_search.chart import chart
from mamba_cli.fleet.size_search.gpu import chosen
from mamba_cli.fleet.size_search.sizing import SizingRequest, size
from mamba_cli.fleet.size_search.sizing_view import SizingReport
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import Format, RequestStream, busiest, read
from mamba_cli.local.plan_source import plan_source
from mamba_cli.local.planning import PlanFlags, PlanOutcome
from mamba_planner.constraints import Workload

DAY = 86_400.0
LONGEST = 7 * DAY
"""Seconds of a trace that are simulated at most: each takes time, also those without a request."""


@dataclass(frozen=True, slots=True)
class TraceFlags:
    """The options of the command that only count with a trace."""

    trace: Path
    expected: Format | None
    ttft: str | None
    tpot: str | None
    gpus: list[str]
    most: int
    requests: int
    """0: all."""
    seed: int
    plot: Path | None
    units: TraceUnits


def plan_trace(source: str, plan: PlanFlags, flags: TraceFlags) -> SizingReport:
    """`plan` is for the one engine. Raises `InvalidInput`, and `RunFailed` if the plot cannot be written."""
    slo = Slo(_seconds("--slo-ttft", flags.ttft), _seconds("--slo-tpot", flags.tpot))
    gpus = chosen(flags.gpus)
    whole = _trace(flags.trace, flags.expected, flags.units)
    outcome = _one(source, plan)
    asked = busiest(whole, flags.requests) if flags.requests else whole
    if asked.seconds > LONGEST:
        times = [each.at for each in asked.workload.arrivals]
        guess = flags.units.guess(times) if asked.identity else ""
        raise InvalidInput(
            f"--trace: {flags.trace}: {len(times):,} requests in {asked.seconds / DAY:,.0f} days; at most "
            f"{LONGEST / DAY:.0f} are simulated{guess}; --requests takes a shorter part"
        )
    question = SizingRequest(
        outcome.model, outcome.constraints, outcome.weights,
        outcome.plan.workload if outcome.plan is not None else Workload(),
        asked, slo, gpus, flags.most, flags.seed,
    )  # fmt: skip
    with _shown() as progress:
        answer = size(question, progress)
    hours = whole.seconds / 3600
    found = SizingReport(
        outcome.name, flags.trace.name, len(whole.workload.arrivals), len(asked.workload.arrivals), hours,
        slo, answer, asked.identity, flags.seed, outcome.not_served, whole.left_out,
    )  # fmt: skip
    if flags.plot is not None:
        unit = "cost of the trace" if found.priced else "GPU-hours of the trace"
        try:
            flags.plot.write_text(chart(answer, hours, unit), encoding="utf-8")
        except OSError as error:
            raise RunFailed(f"--plot: {flags.plot}: {error.strerror}") from error
    return found


def _seconds(option: str, text: str | None) -> float:
    if text is None:
        raise InvalidInput(f"--trace needs {option}: a promise such as --slo-ttft 2s --slo-tpot 100ms")
    try:
        found = parse_duration(text)
    except InvalidDuration as error:
        raise InvalidInput(f"{option}: {error}") from error
    if not found > 0:
        raise InvalidInput(f"{option}: must be above 0")
    return found


def _trace(path: Path, expected: Format | None, units: TraceUnits) -> RequestStream:
    try:
        found = read(path, expected, units)
    except FileNotFoundError:
        raise InvalidInput(f"--trace: {path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"--trace: {path}: cannot be read: {error}") from error
    except TraceError as error:
        raise InvalidInput(f"--trace: {path}: {error}") from error
    if not found.seconds > 0:
        raise InvalidInput(f"--trace: {path}: it takes requests at two moments at least")
    return found


def _one(source: str, plan: PlanFlags) -> PlanOutcome:
    outcomes = plan_source(source, plan)
    if len(outcomes) != 1:
        raise InvalidInput(f"{source}: --trace plans one model at a time, here are {len(outcomes)}")
    return outcomes[0]


@contextmanager
def _shown() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, a line for each candidate elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        yield lambda what, share: print(f"{share:4.0%} {what}", file=sys.stderr, flush=True)  # noqa: T201
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
