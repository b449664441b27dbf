"""All autoscalers behind the product's router, and all routers with the product's autoscaler: one table.

Each run begins with as many engines as the cheapest fixed fleet that attains the goal has, so that nobody is
judged by a start from nothing. The oracle makes engines as full as the goal allows.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.fleet.experiment import SCALERS, Experiment, Progress, ScalerName, silent
from benchmarks.fleet.routers import ROUTERS, RouterName
from benchmarks.fleet.score import Score


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    workload: str
    router: RouterName
    scaler: ScalerName
    score: Score
    cost: float
    """GPU-seconds by those of the cheapest fixed fleet behind the product's router."""

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "workload": self.workload, "router": self.router, "scaler": self.scaler, "cost": self.cost,
            **asdict(self.score),
        }  # fmt: skip


COLUMNS = (
    "workload", "router", "scaler", "attained", "GPU-seconds", "to fixed", "reversals", "pending excess",
    "recovery", "lost", "hit rate", "computed again",
)  # fmt: skip
HEAD = (f"| {' | '.join(COLUMNS)} |", f"| {' | '.join('---' for _ in COLUMNS)} |")


def line(row: Row) -> str:
    """Return one row of the Markdown table."""
    score = row.score
    cells = (
        row.workload, row.router, row.scaler, f"{score.sloAttainment:.1%}", f"{score.gpuSeconds:,.0f}",
        f"{row.cost:.2f}", score.reversals, score.worstPendingExcess, f"{score.recoverySeconds:.0f} s",
        score.lostRequests, f"{score.tokenHitRate:.1%}", f"{score.recomputedTokens:,}",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def compare_and_print(
    load: tuple[str, Experiment],
    routers: Sequence[RouterName] = ROUTERS,
    progress: Progress = silent,
    scalers: Sequence[ScalerName] = SCALERS,
) -> list[Row]:
    """Run `compare` on one (name, experiment) and print each row to standard error."""

    def print_row(row: Row) -> None:
        print(line(row), file=sys.stderr, flush=True)

    return compare(*load, print_row, progress, routers, scalers)


def compare(
    name: str,
    experiment: Experiment,
    on_row: Callable[[Row], None],
    progress: Progress = silent,
    routers: Sequence[RouterName] = ROUTERS,
    scalers: Sequence[ScalerName] = SCALERS,
) -> list[Row]:
    """Compare all rows of one workload; `on_row` is called with each result."""
    replicas, fixed = experiment.cheapest_fixed("ours", progress)
    begun = experiment.starting_with(replicas)
    rows: list[Row] = []

    def add(router: RouterName, scaler: ScalerName, score: Score) -> None:
        rows.append(Row(name, router, scaler, score, round(score.gpuSeconds / (fixed.gpuSeconds or 1.0), 3)))
        on_row(rows[-1])

    add("ours", "fixed", fixed)
    for scaler in scalers:
        if scaler != "fixed":
            add("ours", scaler, begun.run("ours", scaler, progress))
    # Without prefixes to know, all routers but the product's go by load as well.
    for router in routers if experiment.stream.identity else ():
        if router != "ours":
            add(router, "ours", begun.run(router, "ours", progress))
    return rows
