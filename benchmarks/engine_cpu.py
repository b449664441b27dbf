"""Gain of the C++ kernels on a CPU: steps of a model with them, with int8 and int4 matrices, and with others.

Run as `python -m benchmarks.engine_cpu --model DIR`. First what the machine can do is measured: bytes read
and float32 operations per second. Then all ways take turns, step by step, in processes that stay up. `--ways`
chooses them: `C++`, `int8` and `int4` (the instruction set that is taken by itself), any of them by name
(`avx2`, `avx512 int8`), `torch`, `transformers`, and `llama.cpp`, `llama.cpp int8` and `llama.cpp int4` (its
`q4_0`), whose tree `--llama-cpp` names.
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

from benchmarks.checkpoint import existing_checkpoint
from benchmarks.machine import facts
from benchmarks.serve import TINY

from mamba_kernels.kernel_choice import INSTRUCTION_SETS

SETS = {"C++": "auto", **{name: name for name in INSTRUCTION_SETS}}
OURS = {
    "torch": ("torch", "none"),
    **{name: (kernels, "none") for name, kernels in SETS.items()},
    **{
        f"{name} {form}".removeprefix("C++ "): (kernels, form)
        for form in ("int8", "int4")
        for name, kernels in SETS.items()
    },
}
"""Kernels and quantization of each way that is the engine's."""
LLAMA_CPP = {"llama.cpp": "bf16", "llama.cpp int8": "q8_0", "llama.cpp int4": "q4_0"}
"""Types of llama.cpp's matrices, by way."""
WAYS = (*OURS, "transformers", *LLAMA_CPP)
Clocks = dict[str, Any]
CLOCKS = ("processor", "wall")
STEPS = ("decode 1", "decode 8", "decode 32", "prefill 512", "prefill 4096")


def command(way: str, options: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the module that measures the way, with its arguments, and its additional variables."""
    model, threads = str(options.model), str(options.threads)
    if way == "transformers":
        return ["benchmarks.engine_cpu_transformers", model, options.dtype, threads], {}
    if way in LLAMA_CPP:
        return ["benchmarks.engine_cpu_llama_cpp", model, str(options.llama_cpp), LLAMA_CPP[way], threads], {}
    kernels, quantization = OURS[way]
    return (
        ["benchmarks.engine_cpu_steps", model, options.dtype, threads, quantization],
        {"MAMBASERVE_KERNELS": kernels, "OMP_WAIT_POLICY": "passive"},
    )


@contextmanager
def steps_process(way: str, options: argparse.Namespace) -> Iterator[Callable[[str], Any]]:
    """Yield a call that requests steps of one process; the first answer names its backend."""
    module, variables = command(way, options)
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
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
    """Return GB/s of a sum over more than any cache holds, the best of some."""
    import torch

    torch.set_num_threads(threads)
    array = torch.ones(64 << 20)
    return array.nbytes / _least(array.sum) / 1e9


def float_rate(threads: int) -> float:
    """Return GFLOP/s of a large product of float32 by torch, the best of some."""
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
    """Return medians, and the median of the ratios within a round. Pure."""
    first, *others = found["ways"]
    lines = [
        f"# CPU kernels: {found['model']}, {found['dtype']}, {found['threads']} threads",
        "",
        f"- machine: {found['machine']['processor']}, load {found['machine']['load_average']}",
        f"- it reads {found['read_gb_per_second']:.1f} GB/s",
        f"- torch multiplies {found['gflop_per_second']:.0f} GFLOP/s of float32",
        f"- medians of {found['rounds']} rounds; processor time is of all threads",
        "",
        *_row("ms, processor / passed", *found["ways"], f"{first} by layers"),
        *_row(*["---"] * (len(found["ways"]) + 2)),
    ]
    for step, rounds in found["steps"].items():
        shares = rounds[-1][first].get("shares", {})
        parts = ", ".join(f"{name} {part:.0%}" for name, part in shares.items())
        lines += _row(step, *(_milliseconds([each[way] for each in rounds]) for way in found["ways"]), parts)
    lines += ["", *_row(f"times {first}", *others), *_row(*["---"] * (len(others) + 1))]
    for step, rounds in found["steps"].items():
        lines += _row(step, *(_ratios([(each[way], each[first]) for each in rounds]) for way in others))
    return "\n".join(lines)


def _milliseconds(answers: list[Clocks]) -> str:
    return _both(
        [{clock: 1e3 * answer[clock] for clock in CLOCKS if clock in answer} for answer in answers], 1
    )


def _ratios(pairs: list[tuple[Clocks, Clocks]]) -> str:
    return _both([{clock: a[clock] / b[clock] for clock in CLOCKS if clock in a} for a, b in pairs], 2)


def _both(values: list[Clocks], digits: int) -> str:
    """Return the medians of both clocks; a way without processor time has a line in its place."""
    return " / ".join(
        f"{median(value[clock] for value in values):.{digits}f}" if clock in values[0] else "-"
        for clock in CLOCKS
    )


def _row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_cpu", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), metavar="STEP")
    parser.add_argument("--ways", nargs="+", default=["C++", "int8", "torch"], metavar="WAY", choices=WAYS)
    parser.add_argument(
        "--llama-cpp", type=Path, help="a tree of llama.cpp with build/bin/llama-batched-bench"
    )
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    record: dict[str, Any] = {
        "model": options.model.name,
        "dtype": options.dtype,
        "threads": options.threads,
        "rounds": options.rounds,
        "ways": options.ways,
        "machine": facts(),
        "read_gb_per_second": read_bandwidth(options.threads),
        "gflop_per_second": float_rate(options.threads),
        "steps": {step: [] for step in options.steps},
    }
    with ExitStack() as stack:
        ask = {way: stack.enter_context(steps_process(way, options)) for way in options.ways}
        for number in range(options.rounds):
            for step in options.steps:
                turn = options.ways if number % 2 == 0 else options.ways[::-1]
                record["steps"][step].append({way: ask[way](step) for way in turn})
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=2) + "\n")
    print(markdown(record))


if __name__ == "__main__":
    main()
