"""Judge the planner on random cases: `python -m benchmarks.planner --cases 200 --seed 1`.

Writes JSON with every case and Markdown with the losses to benchmarks/results. The same seed gives the same
cases and, but for the time it took, the same file.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.cache.record import RESULTS, write
from benchmarks.fleet.__main__ import progress_bar
from benchmarks.planner.case import cases
from benchmarks.planner.comparison import CaseResult, judge

from mamba_planner.errors import InsufficientMemory
from mamba_planner.strategy import MOST_ROBUST_FIRST

ALLOWED = 0.05
"""Share of the best throughput that a choice may give away."""
SHOWN = 12


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    command_line = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    command_line.add_argument("--cases", type=int, default=200)
    command_line.add_argument("--seed", type=int, default=1)
    command_line.add_argument(
        "--length", type=float, default=1.0, help="of each run, times the usual; default 1"
    )
    command_line.add_argument("--out", type=Path, default=RESULTS, help="folder for what is written")
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases; 0, or 1 where a choice gives away more than it may."""
    options = parser().parse_args(arguments)
    judged: list[CaseResult] = []
    refused = 0
    with progress_bar("cases") as progress:
        for number, case in enumerate(cases(options.cases, options.seed), 1):
            try:
                judged.append(judge(case, length=options.length))
            except InsufficientMemory:
                refused += 1
            progress(number / options.cases)
    record = {
        "cases": options.cases,
        "seed": options.seed,
        "refused": refused,
        "rows": [row(j) for j in judged],
    }
    write("planner", record, report(judged, options.cases, options.seed), options.out)
    return int(any(each.loss > ALLOWED for each in judged))


def row(result: CaseResult) -> dict[str, Any]:
    """Return one case in the form of the JSON file."""
    case, plan = result.case, result.chosen
    return {
        "number": case.number, "model": case.name, "device_memory": case.device.memory,
        "gpu": asdict(case.gpu), "traffic": asdict(case.shape), "prompt_tokens": case.workload.prompt_tokens,
        "output_tokens": case.workload.output_tokens,
        "shared_prefix_ratio": case.workload.shared_prefix_ratio,
        "slabs": plan.slabs, "state_dtype": plan.state_dtype, "chosen": plan.strategy, "best": result.best,
        "loss": round(result.loss, 4),
        "strategies": {
            name: {
                "max_running": result.plans[name].max_running_requests,
                "expected_saved": round(result.plans[name].expected_saved, 3),
                "resumed": round(served.resumed, 3), "running": round(served.running, 1),
                "tokens_per_second": round(served.tokens_per_second, 1),
            }
            for name, served in result.served.items()
        },
    }  # fmt: skip


def losses(results: Sequence[CaseResult], strategy: str) -> list[float]:
    """Return the losses of always taking `strategy`; 1 where it does not fit."""
    return [
        1 - each.served[strategy].tokens_per_second / each.served[each.best].tokens_per_second
        if strategy in each.served
        else 1.0
        for each in results
    ]


def report(results: Sequence[CaseResult], count: int, seed: int) -> list[str]:
    """Return the Markdown below the header. Pure."""
    planned = [each.loss for each in results]
    what = (
        f"{count} random cases of seed {seed}: a published model, a GPU's memory, traffic of conversations "
        "(`python -m benchmarks.planner`). The plan sees what a user would declare: mean lengths, the share "
        "of prompts that was there before, the concurrency. Then each strategy serves the same requests with "
        "the engine's own scheduler, admission, cache and pace of steps, whose time a roofline says. Best is "
        "the most tokens, of prompts and answers, that ended in a second of that time. Nothing here is "
        "measured on a GPU."
    )
    lines = [
        "",
        what,
        "",
        f"| what is taken | within {ALLOWED:.0%} of the best | mean loss | worst loss |",
        "| --- | --- | --- | --- |",
    ]
    for name, lost in (
        ("the plan", planned),
        *((f"always {each}", losses(results, each)) for each in MOST_ROBUST_FIRST),
    ):
        within = sum(each <= ALLOWED for each in lost)
        lines.append(f"| {name} | {within} of {len(lost)} | {fmean(lost):.1%} | {max(lost):.1%} |")
    lines += [
        "",
        "The largest losses; tokens per second and, in brackets, the share of prompt tokens resumed:",
        "",
        "| case | model | requests at once | prompt + answer | shared | slabs | chosen | loss | "
        + " | ".join(MOST_ROBUST_FIRST) + " |",
        "| --- " * (8 + len(MOST_ROBUST_FIRST)) + "|",
    ]  # fmt: skip
    for each in sorted(results, key=lambda each: -each.loss)[:SHOWN]:
        load = each.case.workload
        ran = [
            f"{each.served[name].tokens_per_second:,.0f} ({each.served[name].resumed:.2f})"
            if name in each.served
            else "does not fit"
            for name in MOST_ROBUST_FIRST
        ]
        lines.append(
            f"| {each.case.number} | {each.case.name} | {load.concurrency} | {load.prompt_tokens:,} + "
            f"{load.output_tokens:,} | {load.shared_prefix_ratio:.2f} | {each.chosen.slabs} | "
            f"{each.chosen.strategy} | {each.loss:.1%} | {' | '.join(ran)} |"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
