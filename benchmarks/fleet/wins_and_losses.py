"""Wins and losses of autoscalers over all loads of a comparison. Pure."""

from collections.abc import Sequence
from statistics import fmean

from benchmarks.fleet.comparison import Row

from mamba_cli.fleet.slo import GOAL

HEAD = (
    "| scaler | loads | kept the goal | mean attained | mean to fixed | reversals | cheapest that kept it |",
    "| --- | --- | --- | --- | --- | --- | --- |",
)
RULES = ("ours", "hpa-queue", "hpa-kv", "kpa", "wva")
"""Autoscalers that know neither the future nor the right size: only these can win a load."""


def attains_goal(row: Row) -> bool:
    """Return whether the share of requests within the SLO reached the goal."""
    return row.score.sloAttainment >= GOAL


def winners(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Return, for each load, the rules that met the goal with the fewest GPU-seconds; none if none met it."""
    best: dict[str, list[str]] = {}
    for load in dict.fromkeys(row.workload for row in rows):
        here = [row for row in rows if row.workload == load and row.router == "ours" and row.scaler in RULES]
        least = min((row.score.gpuSeconds for row in here if attains_goal(row)), default=None)
        best[load] = [row.scaler for row in here if attains_goal(row) and row.score.gpuSeconds == least]
    return best


def verdict(rows: Sequence[Row]) -> list[str]:
    """Return the lines of Markdown, one for each autoscaler behind the product's router."""
    won = [scaler for each in winners(rows).values() for scaler in each]
    lines = list(HEAD)
    for scaler in dict.fromkeys(row.scaler for row in rows if row.router == "ours"):
        own = [row for row in rows if row.router == "ours" and row.scaler == scaler]
        attained = fmean(row.score.sloAttainment for row in own)
        cells = (
            scaler, len(own), sum(map(attains_goal, own)), f"{attained:.1%}",
            f"{fmean(row.cost for row in own):.2f}", sum(row.score.reversals for row in own),
            won.count(scaler) if scaler in RULES else "-",
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]
