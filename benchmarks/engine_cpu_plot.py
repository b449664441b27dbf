"""Draw the results that `benchmarks.engine_cpu --out FILE` wrote, as SVG.

The picture shows tokens per second of each way, and the share of each kind of layer in the last step's time.
Run as `python -m benchmarks.engine_cpu_plot FILE SVG`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any


def tokens_per_second(found: dict[str, Any], step: str) -> dict[str, float]:
    """Return the median over the rounds, by way."""
    tokens = int(step.split()[1])
    rounds = found["steps"][step]
    return {way: tokens / median(each[way]["wall"] for each in rounds) for way in found["ways"]}


def shares(found: dict[str, Any], step: str) -> dict[str, float]:
    """Return the shares of the first way's step time by kind of layer; empty if not measured."""
    rounds = [each[found["ways"][0]].get("shares") or {} for each in found["steps"][step]]
    kinds = {kind: median(each.get(kind, 0.0) for each in rounds) for kind in rounds[0]}
    return {**kinds, "others": max(1.0 - sum(kinds.values()), 0.0)} if kinds else {}


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the results into a file; the same results give the same file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mambaserve"
    from matplotlib import pyplot

    steps = list(found["steps"])
    figure, panels = pyplot.subplots(1, len(steps) + 1, figsize=(2.4 * len(steps) + 2, 3.6))
    for axes, step in zip(panels, steps, strict=False):
        rates = tokens_per_second(found, step)
        bars = axes.bar(range(len(rates)), list(rates.values()), color=[f"C{at}" for at in range(len(rates))])
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
        axes.set_xticks(range(len(rates)), list(rates), rotation=45, ha="right", fontsize=7)
        axes.set_title(step, fontsize=9)
    panels[0].set_ylabel("tokens per second")
    bottom = 0.0
    for kind, part in shares(found, steps[-1]).items():
        panels[-1].bar([found["ways"][0]], [part], bottom=bottom, label=f"{kind} {part:.0%}")
        bottom += part
    panels[-1].set_title(f"time of {steps[-1]}", fontsize=9)
    panels[-1].legend(fontsize=7, loc="lower center")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_cpu_plot", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("svg", type=Path)
    options = parser.parse_args(arguments)
    draw(json.loads(options.file.read_text(encoding="utf-8")), options.svg)


if __name__ == "__main__":
    main()
