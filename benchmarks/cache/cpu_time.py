"""CPU time of the cache's own Python: match and insert of a long prompt, and a scheduler step.

Run as `python -m benchmarks.cache.cpu_time`; writes JSON and Markdown to benchmarks/results. Targets: 1 ms
for match and insert of 32,768 tokens on pages of 16, 1 ms for a step at 256 running sequences.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from benchmarks.cache.record import write
from benchmarks.scheduler_step import measure as scheduler_step

from mamba_server.cache.eviction import Eviction
from mamba_server.cache.tree import RadixTree

TOKENS, PAGE = 32_768, 16


def match_and_insert(nodes: int, repeats: int = 50) -> dict[str, float]:
    """Return the milliseconds for a prompt whose first half lies in the tree, cut into `nodes` nodes."""
    tree = RadixTree(PAGE, Eviction("RecomputeCost"))
    rng = np.random.default_rng(0)
    pages = np.arange(TOKENS // PAGE, dtype=np.int32)
    stem = rng.integers(1, 1 << 15, TOKENS // 2).astype(np.int32)
    for index in range(nodes):
        end = len(stem) * (index + 1) // nodes // PAGE * PAGE
        tree.insert(stem[:end], pages[: end // PAGE], index + 1, 1, "")
    seconds = []
    for number in range(repeats):
        tail = rng.integers(1, 1 << 15, TOKENS - len(stem)).astype(np.int32)
        prompt = np.concatenate([stem, tail])
        began = time.thread_time()
        tree.match(prompt, "", number + 2)
        tree.insert(prompt, pages, 10_000 + number, number + 2, "")
        seconds.append(1e3 * (time.thread_time() - began))
    return {
        "nodes": nodes,
        "median_ms": round(statistics.median(seconds), 4),
        "max_ms": round(max(seconds), 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    record: dict[str, Any] = {
        "tokens": TOKENS,
        "page_size": PAGE,
        "match_and_insert": [match_and_insert(nodes) for nodes in (1, 32, 1024)],
        "scheduler_step": [
            {"running": running, **{name: round(value, 4) for name, value in scheduler_step(running).items()}}
            for running in (1, 32, 256)
        ],
    }
    lines = [
        "",
        f"| match + insert of {TOKENS:,} tokens, nodes on the path | median, ms | longest, ms |",
        "| --- | --- | --- |",
        *(f"| {r['nodes']:,} | {r['median_ms']} | {r['max_ms']} |" for r in record["match_and_insert"]),
        "",
        "| scheduler step, running | median, ms | p99, ms |",
        "| --- | --- | --- |",
        *(f"| {r['running']} | {r['step']} | {r['p99']} |" for r in record["scheduler_step"]),
    ]
    write("cache-cpu-time", record, lines)


if __name__ == "__main__":
    main()
