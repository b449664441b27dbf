"""Token hit rate of the state cache on a trace, against an endless cache, by slots and eviction policy.

Run as `python -m benchmarks.cache.hit_rate [--trace FILE]`; writes JSON and Markdown to benchmarks/results
and the plot to docs/assets. Without a trace it makes a small one.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cache.block_trace import endless_cache_bound, generated
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.replay import CachePolicy, replay

from mamba_cli.bench.traces import Arrival, parse
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK, usable

KV_BESIDE = 2_050_000
STATE_TOKENS = 8_758
"""KV tokens that take the bytes of one float32 state of Nemotron Nano 9B v2."""


def measure(arrivals: Sequence[Arrival], slots: Sequence[int], kv: Sequence[int]) -> list[dict[str, Any]]:
    """Measure each policy, number of slots and KV (0: a model without attention, slots alone bind)."""
    bound = endless_cache_bound(arrivals)
    rows = []
    for beside in kv:
        for count in slots:
            for eviction in ("RecomputeCost", "LRU"):
                began = time.perf_counter()
                size = CacheSize(count, beside, STATE_TOKENS if beside else 0)
                policy = CachePolicy(
                    eviction, page_size=BLOCK, track_interval=BLOCK, step_tokens=1 << 18
                )  # fmt: skip
                seen = replay(arrivals, size, policy)
                rows.append(
                    {
                        "slots": count,
                        "kv_tokens_beside": beside,
                        "eviction": eviction,
                        "hit_rate": round(seen.hit_rate, 4),
                        "of_bound": round(seen.hit_rate / bound, 4) if bound else None,
                        "checkpoints_made": seen.checkpoints_made,
                        "checkpoints_evicted": seen.checkpoints_evicted,
                        "checkpoints_skipped": seen.checkpoints_skipped,
                        "refused": seen.refused,
                        "misses": seen.misses,
                        "seconds": round(time.perf_counter() - began, 1),
                    }
                )
                print(rows[-1], flush=True)
    return rows


def markdown(found: dict[str, Any]) -> list[str]:
    """Return the lines of the tables."""
    lines = [
        f"- trace: {found['trace']}, {found['requests']} requests, {found['prompt_tokens']:,} prompt tokens",
        f"- bound (every block of every prompt kept for ever, attention KV): {found['bound']:.1%}",
        f"- pages of {BLOCK} tokens, as the trace tells no more; at most 4 checkpoints per path",
        "- requests one after the other, one output token each; ExtraBuffer without overlap",
        f"- KV that is counted shares one arena with the states; a state is {STATE_TOKENS:,} tokens of KV",
        "",
        "| slots | KV tokens beside | eviction | hit rate | of the bound | made | evicted |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['slots']:,} | {f'{kv:,}' if (kv := row['kv_tokens_beside']) else 'not counted'} "
        f"| {row['eviction']} | {row['hit_rate']:.1%} | {row['of_bound']:.3f} "
        f"| {row['checkpoints_made']:,} | {row['checkpoints_evicted']:,} |"
        for row in found["rows"]
    ]
    return [*lines, ""]


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.hit_rate", description=__doc__)
    parser.add_argument("--trace", type=Path, help="Mooncake-format JSON lines; none = a small generated one")
    parser.add_argument("--slots", type=int, nargs="+", default=None)
    parser.add_argument("--kv", type=int, nargs="+", default=(0, KV_BESIDE))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.trace:
        with options.trace.open(encoding="utf-8") as lines:
            arrivals = usable(parse(lines))
        slots = options.slots or (50, 400, 1600)
    else:
        arrivals = generated(400)
        slots = options.slots or (8, 32, 128)
    record = {
        "trace": options.trace.name if options.trace else "generated",
        "requests": len(arrivals),
        "prompt_tokens": sum(a.input_tokens for a in arrivals),
        "bound": round(endless_cache_bound(arrivals), 4),
        "rows": measure(arrivals, slots, options.kv),
    }
    write("cache-hit-rate", record, markdown(record), options.out)


if __name__ == "__main__":
    main()
