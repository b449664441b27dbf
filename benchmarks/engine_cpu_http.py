"""Cost of HTTP, the engine loop and sampling on a CPU: decode steps inside and through HTTP.

Run as `python -m benchmarks.engine_cpu_http --model DIR`. An engine with its defaults and the steps of
`benchmarks.engine_cpu` take turns, round by round. Inside, one step is the model alone. Through HTTP, so many
streams are read at once and a step is the time between two events, from when all streams have begun until the
first one ends; both have the same context on average. Processor time is of all threads of each process.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoint import existing_checkpoint
from benchmarks.engine_cpu import steps_process
from benchmarks.engine_cpu_steps import CONTEXT
from benchmarks.http_cpu import cpu_seconds
from benchmarks.http_cpu_processes import end_children_on_sigterm, started
from benchmarks.machine import facts
from benchmarks.serve import TINY, engine_samples

from mamba_cli.bench.prompts import LengthRange, random_prompts
from mamba_cli.bench.samples import Sample

DECODED = 128
"""So long that 32 streams still run side by side when the last of them has begun."""


def streamed_step(samples: Sequence[Sample]) -> float:
    """Return the seconds of a step while all streams run.

    Raises RuntimeError where a request failed, or where the streams never ran at the same time. Pure.
    """
    if failed := {sample.error for sample in samples if sample.error}:
        raise RuntimeError(f"requests failed: {failed}")
    begun = [sample.sent + (sample.ttft or 0.0) for sample in samples]
    first, last = max(begun), min(sample.end for sample in samples)
    if first >= last:
        raise RuntimeError("a stream ended before the last one began: no step had all of them")
    gaps = [
        end - start
        for begin, sample in zip(begun, samples, strict=True)
        for start, end in _events(begin, sample.itl)
        if start >= first and end <= last
    ]
    return sum(gaps) / len(gaps)


def _events(begin: float, gaps: Sequence[float]) -> list[tuple[float, float]]:
    return list(pairwise(accumulate(gaps, initial=begin)))


def children(pid: int) -> list[int]:
    """Return the ids of a process's children that still run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def through_http(pid: int, url: str, level: int, turn: int) -> dict[str, float]:
    """Return the seconds of a step, and processor seconds of both processes for a token."""
    lengths = LengthRange(CONTEXT - DECODED // 2), LengthRange(DECODED)
    prompts = list(random_prompts(level, *lengths, 256, seed=level + 1000 * turn))
    engines = children(pid)

    def clocks() -> tuple[float, float]:
        return cpu_seconds(pid), sum(map(cpu_seconds, engines))

    before = clocks()
    samples = asyncio.run(engine_samples(url, prompts, level))
    api, engine = (after - start for after, start in zip(clocks(), before, strict=True))
    return {"wall": streamed_step(samples), "api": api / DECODED, "engine": engine / DECODED}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_cpu_http", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--levels", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    end_children_on_sigterm()
    rounds: dict[int, list[dict[str, Any]]] = {level: [] for level in options.levels}
    command = [
        sys.executable, "-P", "-m", "mamba_cli", "serve", "--model", str(options.model.resolve()),
        "--dtype", options.dtype, "--device", "cpu", "--port", "0",
    ]  # fmt: skip
    with ExitStack() as stack:
        pid, url = stack.enter_context(started(command, "mambaserve: ready", Path.cwd()))
        step = stack.enter_context(steps_process("C++", options))
        through_http(pid, url, 1, 0)  # warms up
        for turn in range(1, options.rounds + 1):
            for level in options.levels:
                # Inside on both sides of what goes through HTTP: the machine changes with the minutes.
                inside = [step(f"decode {level}")["wall"] for _ in range(DECODED // 4)]
                http = through_http(pid, url, level, turn)
                inside += [step(f"decode {level}")["wall"] for _ in range(DECODED // 4)]
                rounds[level].append({"inside": sum(inside) / len(inside), "http": http})
            print(
                f"round {turn} of {options.rounds}: load {os.getloadavg()[0]:.1f}",
                file=sys.stderr,
                flush=True,
            )
    record = {"model": options.model.name, "machine": facts(), "at": time.time(), "levels": rounds}
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(markdown(record))


def markdown(found: dict[str, Any]) -> str:
    """Return medians, and the median of the ratios within a round. Pure."""
    lines = [
        f"# Decode steps inside and through HTTP: {found['model']}",
        "",
        f"- machine: {found['machine']['processor']}, load {found['machine']['load_average']}",
        "",
        "| at once | inside, ms | through HTTP, ms | inside / HTTP | API process, ms CPU | engine, ms CPU |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for level, rounds in found["levels"].items():
        ratio = median(each["inside"] / each["http"]["wall"] for each in rounds)
        inside = 1e3 * median(each["inside"] for each in rounds)
        wall, api, engine = (
            1e3 * median(each["http"][name] for each in rounds) for name in ("wall", "api", "engine")
        )
        lines.append(f"| {level} | {inside:.1f} | {wall:.1f} | {ratio:.2f} | {api:.1f} | {engine:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
