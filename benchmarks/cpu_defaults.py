"""Speed of an engine with default settings on a CPU.

The defaults are compared with overlap on, overlap off, the threads that OpenMP starts by itself, and
transformers `generate`; alone, and next to a busy process.

Run as `python -m benchmarks.cpu_defaults`. All engines stay up and are measured in turns, round by round, so
that a machine which others use as well treats them alike; what is compared is the median over the rounds.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.baseline import Baseline
from benchmarks.checkpoint import existing_checkpoint
from benchmarks.cpu_defaults_summary import markdown
from benchmarks.engine import running_engine
from benchmarks.machine import facts
from benchmarks.serve import TINY, ServeLoad, engine_outputs, engine_samples, same_tokens

from mamba_cli.bench.samples import LatencyLimits, Sample, report

ROOT = Path(__file__).parent
LEVELS = (1, 8, 32)
TRANSFORMERS = "transformers generate"


Rate = Callable[[int, int], float]
"""(requests at once, turn) -> output tokens per second"""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to start the engine. `variables`: of its environment."""

    name: str
    options: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)


def variants(cores: int) -> tuple[Variant, ...]:
    """Return the variants to compare.

    OpenMP by itself takes every core and spins 300,000 turns at each barrier.
    """
    untouched = {"OMP_NUM_THREADS": str(cores), "GOMP_SPINCOUNT": "300000"}
    return (
        Variant("default"),
        Variant("torch alone", (), {"MAMBASERVE_KERNELS": "torch"}),
        Variant("overlap on", ("--overlap",)),
        Variant("overlap off", ("--no-overlap",)),
        Variant("overlap on, OpenMP by itself", ("--overlap",), untouched),
        Variant("overlap off, OpenMP by itself", ("--no-overlap",), untouched),
    )


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run `count` more processes, each of which uses a whole core."""
    spin = [sys.executable, "-c", "while True: pass"]
    started = [subprocess.Popen(spin) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def rate(samples: Sequence[Sample]) -> float:
    """Return the output tokens per second. Raises RuntimeError when a request failed."""
    if failed := {sample.error for sample in samples if sample.error}:
        raise RuntimeError(f"requests failed: {failed}")
    return float(report(list(samples), LatencyLimits())["rates"]["output_tokens_per_second"])


def take_turns(
    measured: dict[str, Rate], levels: Sequence[int], turns: range
) -> dict[str, dict[int, list[float]]]:
    """Measure the rates by name and level, one a turn.

    The order and the prompts differ in each turn, because an engine that always followed the same one would
    always run with the state that it leaves behind.
    """
    rates: dict[str, dict[int, list[float]]] = {name: {level: [] for level in levels} for name in measured}
    for turn in turns:
        order = random.Random(turn)
        for level in levels:
            for name in order.sample(list(measured), len(measured)):
                rates[name][level].append(round(measured[name](level, turn), 1))
                print(
                    f"{name} at {level}: {rates[name][level][-1]:,.0f} tokens/s", file=sys.stderr, flush=True
                )
        print(f"round {turn} of {turns[-1]}: load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    return rates


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in one run."""
    load = ServeLoad(options.input_tokens, options.output_tokens, options.requests, tuple(options.levels))
    cores = os.cpu_count() or 1
    chosen = [each for each in variants(cores) if not options.only or each.name in options.only]
    tables: dict[str, Any] = {}
    with ExitStack() as stack:
        urls = {
            each.name: stack.enter_context(
                running_engine(
                    options.model, "--device", "cpu", *each.options, threads=None, variables=each.variables
                )
            )
            for each in chosen
        }
        probe = load.prompts(load.levels[0])[0]
        tokens = {name: asyncio.run(engine_outputs(url, probe)) for name, url in urls.items()}

        def of_engine(url: str) -> Rate:
            return lambda level, turn: rate(
                asyncio.run(engine_samples(url, load.prompts(level, turn), level))
            )

        measured = {name: of_engine(url) for name, url in urls.items()}
        expected: list[int] = []
        if not options.no_transformers:
            baseline = Baseline(options.model, "cpu", options.dtype, cores)
            expected = baseline.outputs(probe)
            measured[TRANSFORMERS] = lambda level, turn: rate(baseline.run(load.prompts(level, turn), level))
        take_turns(measured, load.levels, range(1))  # warms up
        for busy in options.busy:
            with busy_processes(busy):
                tables[str(busy)] = take_turns(measured, load.levels, range(1, options.rounds + 1))
    return {
        "model": options.model.name,
        "same_greedy_tokens": {
            name: f"{same_tokens(got, expected)} of {len(expected)}"
            for name, got in tokens.items()
            if expected
        },
        "variants": {
            each.name: {"options": list(each.options), "environment": each.variables} for each in chosen
        },
        "busy_processes": tables,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_defaults", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument(
        "--dtype", default="float32", help="of transformers; the engine takes the checkpoint's"
    )
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument(
        "--requests", type=int, default=2, help="requests of a round: so many times the level"
    )
    parser.add_argument("--levels", type=int, nargs="+", default=list(LEVELS), help="requests at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="busy processes beside it")
    parser.add_argument("--only", nargs="+", help="names of variants; none = all")
    parser.add_argument("--no-transformers", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    options = parser.parse_args(arguments)
    begin = time.monotonic()
    record = {
        "benchmark": "cpu_defaults",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts(),
        "load": {
            name: getattr(options, name) for name in ("input_tokens", "output_tokens", "requests", "rounds")
        },
        **measure(options),
    }
    record["load_average_at_the_end"] = [round(value, 2) for value in os.getloadavg()]
    record["took_seconds"] = round(time.monotonic() - begin, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y-%m-%d}-cpu-defaults"
    (options.out / f"{stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    (options.out / f"{stem}.md").write_text(markdown(record))
    print(markdown(record))


if __name__ == "__main__":
    main()
