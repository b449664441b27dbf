"""A sweep: one run for each of several loads, from the lightest, and a table of all runs.

Called by `bench sweep`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from mamba_cli.bench.run import LoadPlan
from mamba_cli.errors import InvalidInput, RunFailed

MOST_LOADS = 64
Execute = Callable[[LoadPlan, Console], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a sweep: its load, and the plan of the run that makes it."""

    load: float
    """Requests in flight, or requests per second."""
    plan: LoadPlan


def loads(text: str, option: str, *, whole: bool) -> list[float]:
    """Return the loads of a list such as `1,2,4`, ascending and each once. Raises `InvalidInput`."""
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    right = all(0 < number < 1e6 and (not whole or number == int(number)) for number in numbers)
    if not numbers or not right or len(numbers) > MOST_LOADS:
        kind = "whole numbers" if whole else "numbers"
        raise InvalidInput(
            f"{option}: must be up to {MOST_LOADS} positive {kind} such as 1,2,4, not {text!r}"
        )
    return numbers


async def sweep(steps: Sequence[Step], kind: str, execute: Execute, console: Console) -> dict[str, Any]:
    """Run the steps one after the other, and return the document of all runs.

    `kind` is the unit of loads: "concurrency" or "rate". The runs end early if the user interrupts one. When
    the server fails at a load, the earlier runs are kept, and `failure` of the document has the load and the
    error. Raises what `execute` raises in the first run.
    """
    runs: list[dict[str, Any]] = []
    failure: dict[str, Any] | None = None
    for number, step in enumerate(steps, start=1):
        console.print(f"{kind} {step.load:g} ({number} of {len(steps)})", highlight=False)
        try:
            runs.append({kind: step.load, **await execute(step.plan, console)})
        except RunFailed as error:
            if not runs:
                raise
            failure = {kind: step.load, "error": str(error)}
            break
        if runs[-1]["interrupted"]:
            break
    return {"sweep": kind, "interrupted": runs[-1]["interrupted"], "failure": failure, "runs": runs}


def sweep_table(document: dict[str, Any]) -> Table:
    """Return a table with a row for each load."""
    kind, runs = document["sweep"], document["runs"]
    limited = any(limit is not None for limit in runs[0]["goodput"]["slo_ms"].values())
    title = f"by {kind}: requests and output tokens per second, latencies in ms"
    table = Table(title=title, title_justify="left")
    goodput = ["goodput/s"] if limited else []
    columns = ["req/s", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", *goodput, "failed"]
    for name in ("in flight" if kind == "concurrency" else "rate", *columns):
        table.add_column(name, justify="right")
    for run in runs:
        rates, latency = run["rates"], run["latency_ms"]
        cells = [f"{rates['requests_per_second']:,.2f}", f"{rates['output_tokens_per_second']:,.1f}"]
        for name in ("ttft", "tpot"):
            cells += [f"{latency[name][rank]:,.1f}" if latency[name] else "-" for rank in ("p50", "p99")]
        if limited:
            cells.append(f"{run['goodput']['requests_per_second']:,.2f}")
        table.add_row(f"{run[kind]:g}", *cells, str(run["requests"]["failed"]))
    return table
