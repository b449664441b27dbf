"""Savings of the eviction policy compared with LRU, an oracle and the space-time bound, in one table.

Run as `python -m benchmarks.cache.policy_table [--trace FILE]`; cells are workload x slots x
{attention KV counted in the same arena, not counted}. Prints a line as each cell is done; writes JSON and
Markdown to benchmarks/results. The four generated workloads take some ten minutes, a recorded trace two more.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cache.cache_run import CacheRun, cache_of, drive
from benchmarks.cache.history import PrefixHistory
from benchmarks.cache.hit_rate import KV_BESIDE, STATE_TOKENS
from benchmarks.cache.oracle import foretold
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.space_time import space_time_bound
from benchmarks.cache.workloads import GENERATED

from mamba_cli.bench.traces import parse
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, usable
from mamba_cli.fleet.workload import TraceWorkload

SLOTS = (50, 400, 1600)


def cell(workload: TraceWorkload, history: PrefixHistory, slots: int, kv: int) -> dict[str, Any]:
    """Measure one row: each policy's share of saved prompt tokens, and its ratios to the bounds."""
    size = CacheSize(slots, kv, STATE_TOKENS if kv else 0)

    def run(policy: str) -> CacheRun:
        began = time.perf_counter()
        cache = cache_of(size, workload, "LRU" if policy == "LRU" else "RecomputeCost")
        hits = drive(workload, foretold(cache, history) if policy == "oracle" else cache)
        took = time.perf_counter() - began
        print(f"  {workload.name} {slots} {policy}: {took:.0f} s", end="\r", file=sys.stderr)
        return hits

    hits = {policy: run(policy) for policy in ("RecomputeCost", "LRU", "oracle")}
    arena = size.arena(workload.block)
    total = hits["LRU"].prompt_tokens
    shares = {policy: each.cached_tokens / total for policy, each in hits.items()}
    bound = space_time_bound(history, arena.slabs - 1, arena.pages_per_slab) / total
    own = shares["RecomputeCost"]
    return {
        "workload": workload.name,
        "slots": slots,
        "kv_tokens_beside": kv,
        "saved": {policy: round(share, 4) for policy, share in shares.items()},
        "bound": round(bound, 4),
        "policy_per_lru": _ratio(own, shares["LRU"]),
        "policy_per_oracle": _ratio(own, shares["oracle"]),
        "policy_per_bound": _ratio(own, bound),
        "checkpoints_made": {policy: each.made for policy, each in hits.items()},
        "refused": hits["LRU"].refused,
    }


def _ratio(one: float, other: float) -> float | None:
    return round(one / other, 3) if other else None


def line(row: dict[str, Any]) -> str:
    """Return one row of the Markdown table."""
    saved = row["saved"]
    return (
        f"| {row['workload']} | {row['slots']:,} | {'counted' if row['kv_tokens_beside'] else 'no'} "
        f"| {saved['RecomputeCost']:.1%} | {saved['LRU']:.1%} | {saved['oracle']:.1%} | {row['bound']:.1%} "
        f"| {row['policy_per_lru']} | {row['policy_per_oracle']} | {row['policy_per_bound']} |"
    )


HEAD = (
    "| workload | slots | KV | policy | LRU | oracle | bound | per LRU | per oracle | per bound |",
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
)


def workloads(names: Sequence[str], trace: Path | None, requests: int | None = None) -> list[TraceWorkload]:
    """Return the generated workloads of these names (none: all) and the recorded trace."""
    chosen = [make for make in GENERATED if not names or make.__name__ in names]
    generated = [make() if requests is None else make(requests) for make in chosen]
    if trace is not None:
        with trace.open(encoding="utf-8") as lines:
            generated.append(TraceWorkload(trace.stem, BLOCK, usable(parse(lines))))
    return generated


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every cell, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.policy_table", description=__doc__)
    parser.add_argument(
        "--trace", type=Path, help="Mooncake-format JSON lines, beside the generated workloads"
    )
    parser.add_argument("--workload", nargs="*", default=(), choices=[make.__name__ for make in GENERATED])
    parser.add_argument("--requests", type=int, help="of each generated workload; none = its own number")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS)
    parser.add_argument("--kv", type=int, nargs="+", default=(0, KV_BESIDE))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows, facts = [], []
    for workload in workloads(options.workload, options.trace, options.requests):
        history = PrefixHistory.of(workload.arrivals, workload.block)
        tokens = sum(arrival.input_tokens for arrival in workload.arrivals)
        facts.append(
            f"- {workload.name}: {len(workload.arrivals):,} requests of "
            f"{tokens // len(workload.arrivals):,} tokens on average, pages of {workload.block}; "
            f"an endless cache saves {space_time_bound(history, 1 << 40, 0) / tokens:.1%}"
        )
        for slots in options.slots:
            for kv in options.kv:
                rows.append(cell(workload, history, slots, kv))
                print(line(rows[-1]), flush=True)
    lines = [*facts, f"- KV that is counted: {KV_BESIDE:,} tokens beside the slots, in one arena", "", *HEAD]
    write("cache-policy", {"rows": rows}, [*lines, *(line(row) for row in rows), ""], options.out)


if __name__ == "__main__":
    main()
