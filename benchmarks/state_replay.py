"""Processor time of decode steps that write states once in several tokens, relative to plain steps, on a CPU.

Run as `python -m benchmarks.state_replay --model DIR`. Steps without scheduler and head, of one model on the
C++ kernels and some threads, take turns in one process, which says the same on a busy machine. States are
float32, and the rows of a step are at all places of their rings, as in a batch whose rows began at any time.
"""

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.cache.record import print_and_keep
from benchmarks.checkpoint import existing_checkpoint
from benchmarks.engine_cpu_steps import StepTimer, decode
from benchmarks.machine import facts
from benchmarks.serve import TINY

from mamba_kernels.cpu.whole_steps.step_decoder import StepDecoder
from mamba_kernels.slot_plan import IntArray
from mamba_planner.families.registry import load_model_config
from mamba_server.model.device_arena import DTYPES, ring_memory
from mamba_server.model.forward_batch import HostBatch

ROWS = (1, 8, 32, 128)
RINGS = (2, 4, 8, 16)
STEPS = 16
"""Steps of a turn: whole cycles of every ring."""


def of_ring(host: HostBatch, tokens: int, step: int) -> HostBatch:
    """Return the step number `step` of a cycle in which each row writes its state once in `tokens` tokens."""
    rows = np.arange(len(host.context_len), dtype=np.int32)
    waiting = (rows + step) % tokens
    ring: IntArray = np.array([rows, waiting, waiting == tokens - 1], np.int32)
    return replace(host, ring=ring)


class Turns:
    """Plain steps and steps with rings of one model, on the same states."""

    def __init__(self, directory: Path, dtype: str, threads: int) -> None:
        self._timer = StepTimer(directory, dtype, threads, "none", most=max(ROWS))
        config = load_model_config(directory)
        self._decoders: dict[int, StepDecoder] = {}
        for tokens in (1, *RINGS):
            rings = []
            if tokens > 1:
                device = torch.device("cpu")
                rings = ring_memory(
                    config, lanes=max(ROWS), tokens=tokens, dtype=DTYPES[dtype], device=device
                )
            decoder = self._timer.decoder_of(replace(self._timer.views, rings=rings))
            assert decoder is not None, "the C++ kernels compute this model in one call"
            self._decoders[tokens] = decoder

    @property
    def kernels(self) -> str:
        """Name of the kernels with their instruction set."""
        return self._timer.model.backend.name

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's states."""
        return sum(states[0].nbytes for states in self._timer.views.ssm)

    def seconds(self, rows: int, tokens: int) -> float:
        """Return the processor seconds of a step of `rows` rows; `tokens` of 1 is a plain step."""
        host, run = decode(rows).host, self._decoders[tokens]
        steps = [host if tokens == 1 else of_ring(host, tokens, step) for step in range(STEPS)]
        begin = time.process_time()
        for step in steps:
            run(step)
        return (time.process_time() - begin) / STEPS


def measured(turns: Turns, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of a step by rows and length of ring, a number for each round; one more warms up."""
    record: dict[str, dict[str, list[float]]] = {}
    for rows in ROWS:
        of_rows: dict[str, list[float]] = {str(tokens): [] for tokens in (1, *RINGS)}
        for number in range(rounds + 1):
            order = [1, *RINGS]
            random.Random(number).shuffle(order)
            for tokens in order:
                seconds = turns.seconds(rows, tokens)
                if number:
                    of_rows[str(tokens)].append(seconds)
        record[str(rows)] = of_rows
    return record


def markdown(record: dict[str, Any]) -> str:
    """Return the medians of the rounds' ratios to plain steps. Pure."""
    heading = " | ".join(f"once in {tokens}" for tokens in RINGS)
    machine = record["machine"]
    lines = [
        f"# States written once in several tokens: {record['model']}, {record['dtype']}",
        "",
        f"- machine: {machine['processor']}, {record['kernels']}, load {machine['load_average']}",
        f"- threads: {record['threads']}; processor time of all",
        f"- states of a sequence: {record['state_bytes'] / 2**10:,.0f} KiB, float32",
        f"- {record['rounds']} rounds of {STEPS} steps in turns; median ratios to plain steps (least, most)",
        "",
        f"| rows | plain step, ms | {heading} |",
        "| --- | ---: |" + " ---: |" * len(RINGS),
    ]
    for rows, seconds in record["seconds"].items():
        plain, cells = seconds["1"], []
        for tokens in RINGS:
            ratios = [mine / true for mine, true in zip(seconds[str(tokens)], plain, strict=True)]
            cells.append(f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
        lines.append(f"| {rows} | {median(plain) * 1e3:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, and keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.state_replay", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    turns = Turns(options.model, options.dtype, options.threads)
    record = {
        "benchmark": "state-replay",
        "model": options.model.name,
        "dtype": options.dtype,
        "threads": options.threads,
        "kernels": turns.kernels,
        "rounds": options.rounds,
        "state_bytes": turns.state_bytes,
        "machine": facts(),
        "seconds": measured(turns, options.rounds),
    }
    print_and_keep(record, markdown(record), options.out)


if __name__ == "__main__":
    main()
