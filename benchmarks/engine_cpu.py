"""What the C++ kernels change on a CPU: steps of a model by them, with int8 matrices, and by torch.

Run as `python -m benchmarks.engine_cpu --model DIR`. First what the machine can do is measured: bytes read
and float32 operations per second. Then the three take turns, step by step, in processes that stay up.
Through HTTP, and beside transformers: `python -m benchmarks.cpu_defaults --only default "torch alone"`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import facts
from benchmarks.serve import TINY

WAYS = {"C++": ("auto", "none"), "int8": ("auto", "int8"), "torch": ("torch", "none")}
"""Kernels and quantization of each."""
STEPS = ("decode 1", "decode 8", "decode 32", "prefill 512")


@contextmanager
def steps_process(model: Path, dtype: str, threads: int, way: str) -> Iterator[Callable[[str], Any]]:
    """Asks one process for steps; the first answer is the name of what computes."""
    kernels, quantization = WAYS[way]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.engine_cpu_steps", str(model), dtype, str(threads), quantization],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MAMBASERVE_CPU_KERNELS": kernels, "OMP_WAIT_POLICY": "passive"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout
    print(f"{way}: {stdout.readline().strip()} computes", file=sys.stderr, flush=True)

    def ask(step: str) -> Any:
        print(step, file=stdin, flush=True)
        return json.loads(stdout.readline())

    try:
        yield ask
    finally:
        stdin.close()
        process.wait(60)
        stdout.close()


def read_bandwidth(threads: int) -> float:
    """GB/s of a sum over more than any cache holds, the best of some."""
    import torch

    torch.set_num_threads(threads)
    array = torch.ones(64 << 20)
    return array.nbytes / _least(array.sum) / 1e9


def float_rate(threads: int) -> float:
    """GFLOP/s of a large product of float32 by torch, the best of some."""
    import torch

    torch.set_num_threads(threads)
    matrix = torch.ones(1024, 1024)
    return float(2 * 1024**3 / _least(lambda: matrix @ matrix) / 1e9)


def _least(run: Callable[[], object], times: int = 5) -> float:
    def once() -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    return min(once() for _ in range(times))


def markdown(found: dict[str, Any]) -> str:
    """Medians, and the median of the ratios within a round. Pure."""
    lines = [
        f"# CPU kernels: {found['model']}, {found['dtype']}, {found['threads']} threads",
        "",
        f"- machine: {found['machine']['processor']}, load {found['machine']['load_average']}",
        f"- it reads {found['read_gb_per_second']:.1f} GB/s",
        f"- torch multiplies {found['gflop_per_second']:.0f} GFLOP/s of float32",
        f"- medians of {found['rounds']} rounds; processor time is of all threads",
        "",
        "| step | C++, ms processor / passed | int8 | torch | C++ to torch | int8 to C++ | C++ by layers |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for step, rounds in found["steps"].items():
        cells = []
        for way in WAYS:
            times = [median(1e3 * each[way][clock] for each in rounds) for clock in ("processor", "wall")]
            cells.append(f"{times[0]:.1f} / {times[1]:.1f}")
        for slow, quick in (("torch", "C++"), ("C++", "int8")):
            ratios = [
                median(each[slow][c] / each[quick][c] for each in rounds) for c in ("processor", "wall")
            ]
            cells.append(f"{ratios[0]:.2f} / {ratios[1]:.2f}")
        cells.append(", ".join(f"{name} {part:.0%}" for name, part in rounds[-1]["C++"]["shares"].items()))
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_cpu", description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), metavar="STEP")
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    asked = parser.parse_args()
    found: dict[str, Any] = {
        "model": asked.model.name,
        "dtype": asked.dtype,
        "threads": asked.threads,
        "rounds": asked.rounds,
        "machine": facts(),
        "read_gb_per_second": read_bandwidth(asked.threads),
        "gflop_per_second": float_rate(asked.threads),
        "steps": {step: [] for step in asked.steps},
    }
    with ExitStack() as stack:
        ask = {
            way: stack.enter_context(steps_process(asked.model, asked.dtype, asked.threads, way))
            for way in WAYS
        }
        for number in range(asked.rounds):
            for step in asked.steps:
                turn = list(WAYS) if number % 2 == 0 else list(WAYS)[::-1]
                found["steps"][step].append({way: ask[way](step) for way in turn})
    if asked.out is not None:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    print(markdown(found))


if __name__ == "__main__":
    main()
