"""Fits an engine profile to a recorded run of `benchmarks.serve`: closed loops of several widths.

Run as `python -m benchmarks.fleet.fit MODEL [--result FILE]`; writes `profiles/cpu-MODEL-fitted.json`. A loop
of n requests at once takes the time of its prompts and of its steps, each with n sequences; its time per
output token is that of such a step. What the fit leaves unexplained stands in the profile as `fit_error`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.cache.record import RESULTS
from benchmarks.fleet.engine_profile import PROFILES

from mamba_cli.fleet.engine_profile import EngineProfile

LEAST = 1e-6
"""Seconds that a step and a sequence in it take at least: a fit of noise is none."""


def fitted(model: str, levels: Sequence[dict[str, Any]], origin: str) -> EngineProfile:
    """Fit a profile by least squares of relative errors. Raises ValueError with fewer than two levels."""
    if len(levels) < 2:
        raise ValueError(f"{model}: a fit takes loops of at least two widths, not {len(levels)}")
    rows = []
    for level in levels:
        capacity, wide = level["engine"], level["concurrency"]
        tokens = capacity["tokens"]
        computed = tokens["prompt"] - tokens["cached"]
        rows.append((capacity["seconds"], computed, tokens["output"] / wide, tokens["output"]))
        rows.append((capacity["latency_ms"]["tpot"]["mean"] / 1000, 0.0, 1.0, float(wide)))
    table = np.array(rows)
    relative = table[:, 1:] / table[:, :1]
    costs = np.linalg.lstsq(relative, np.ones(len(table)), rcond=None)[0].clip(LEAST)
    prompt, step, sequence = map(float, costs)
    return EngineProfile(
        name=f"cpu-{model}-fitted",
        origin=origin,
        prefill_tokens_per_second=round(1 / prompt, 2),
        step_seconds=round(step, 6),
        sequence_seconds=round(sequence, 6),
        chunk_tokens=64,
        max_running=64,
        slabs=256,
        tokens_per_state=4096,
        fit_error=round(float(np.abs(relative @ costs - 1).mean()), 3),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.fit", description=__doc__)
    parser.add_argument("model", help="as the result names it")
    parser.add_argument("--result", type=Path, help="default: the newest of benchmarks.serve")
    options = parser.parse_args(arguments)
    path = options.result or max(RESULTS.glob("*-serve.json"))
    result = json.loads(path.read_text(encoding="utf-8"))
    levels = next((each["levels"] for each in result["models"] if each["model"] == options.model), None)
    if levels is None:
        parser.error(f"{path} has no model {options.model}: {[each['model'] for each in result['models']]}")
    origin = f"fitted to {path.name}, {result['dtype']} on {result['threads']} threads; memory assumed"
    profile = fitted(options.model, levels, origin)
    out = PROFILES / f"{profile.name}.json"
    out.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
