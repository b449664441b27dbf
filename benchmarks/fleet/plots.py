"""Draws cost against attainment, one panel for each workload, as SVG."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.fleet.comparison import Row

from mamba_cli.fleet.slo import GOAL


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the rows into a file; the same rows give the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mambaserve"
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure, panels = pyplot.subplots(1, len(workloads), figsize=(4 * len(workloads), 3.8), squeeze=False)
    for axes, workload in zip(panels[0], workloads, strict=True):
        for row in rows:
            if row.workload == workload:
                label = row.scaler if row.router == "ours" else row.router
                axes.plot(row.cost, row.score.sloAttainment, "o")
                axes.annotate(
                    label,
                    (row.cost, row.score.sloAttainment),
                    fontsize=7,
                    xytext=(3, 3),
                    textcoords="offset points",
                )
        axes.axhline(GOAL, color="grey", linestyle="--", linewidth=0.8)
        axes.set_xlabel("GPU-seconds by the cheapest fixed fleet")
        axes.set_ylabel("requests within the SLO")
        axes.set_title(workload, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
