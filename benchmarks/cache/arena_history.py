"""Records the contents of an arena as requests come, for the picture of the documentation.

Run as `python -m benchmarks.cache.arena_history`; writes JSON and Markdown to benchmarks/results, from which
`python -m benchmarks.pictures` draws. The load and the engine are those of `fragmentation`.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.cache.fragmentation import SIZES, churn
from benchmarks.cache.record import RESULTS, write
from benchmarks.cache.replay import CachePolicy

from mamba_cli.fleet.engine_profile import CacheSize

SAMPLES = 160


def history(requests: int, seed: int) -> list[dict[str, Any]]:
    """Return the shares of the arena at `SAMPLES` moments, each with the number of requests until then."""
    samples: list[dict[str, Any]] = []
    every = max(1, requests // SAMPLES)

    def note(number: int, shares: Any) -> None:
        if number % every == 0 and (not samples or samples[-1]["request"] != number):
            shown = {name: round(share, 4) for name, share in asdict(shares).items()}
            samples.append({"request": number, **shown})

    slabs, tokens = SIZES[0]
    churn(
        CacheSize(slabs, 0, tokens),
        CachePolicy(),
        requests,
        seed,
        note,
    )
    return samples


def main() -> None:
    """Run the load and keep the samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.arena_history", description=__doc__)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    samples = history(options.requests, options.seed)
    lines = [
        f"- {options.requests:,} requests, 16 at once, {SIZES[0][0]} slabs, ExtraBuffer, RecomputeCost",
        f"- {len(samples)} samples of the shares of its bytes; drawn in docs/assets/arena-over-time.svg",
    ]
    write("arena-history", {"requests": options.requests, "samples": samples}, lines, options.out)


if __name__ == "__main__":
    main()
