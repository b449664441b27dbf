"""Processor time of batch-invariant mode, relative to the default: prompts and answers, alone and at once.

Run as `python -m benchmarks.batch_invariant`; with `--model DIR` for another model. Steps of both engines
take turns on one thread, and its processor time counts, which says the same on a busy machine.
"""

import argparse
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.cache.record import print_and_keep
from benchmarks.checkpoint import existing_checkpoint
from benchmarks.machine import facts
from benchmarks.serve import TINY

from mamba_server.engine.boot import Engine, boot, use_threads
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

PROMPT = 512
ANSWER = 64
LOADS = {"1 prompt": (1, 1), "16 prompts": (16, 1), "1 answer": (1, ANSWER), "16 answers": (16, ANSWER)}
"""Sequences at once and tokens of an answer. Prompts count without answers, and answers without prompts."""


def booted(model: Path, *, invariant: bool) -> Engine:
    """Return an engine without a prefix cache, on one thread."""
    settings = EngineSettings(
        model=str(model), device="cpu", dtype="float32", seed=0, arena_bytes=400 << 20,
        prefix_caching=False, batch_invariant=invariant, audit_share=0,
    )  # fmt: skip
    engine = boot(settings, lambda *_: None)
    use_threads(engine, 1)
    return engine


def served(engines: dict[str, Engine], prompts: list[list[int]], answer: int, name: str) -> dict[str, float]:
    """Return the processor seconds of each engine for prompts alone, or for answers behind them."""
    params = SamplingParams(max_tokens=answer, temperature=0.0, ignore_eos=True)
    waiting = {way: len(prompts) for way in engines}
    seconds = dict.fromkeys(engines, 0.0)
    for engine in engines.values():
        for number, prompt in enumerate(prompts):
            engine.core.add(AddRequest(f"{name} {number}", TokenIds(prompt), params))
    begun: dict[str, set[str]] = {way: set() for way in engines}
    while running := [way for way, engine in engines.items() if not engine.core.idle]:
        for way in running:
            are_written = len(begun[way]) == waiting[way]
            before = time.thread_time()
            deltas = engines[way].core.step()
            if are_written or answer == 1:
                seconds[way] += time.thread_time() - before
            begun[way] |= {delta.request_id for delta in deltas if delta.token_ids}
    return seconds


def measured(engines: dict[str, Engine], rounds: int) -> dict[str, Any]:
    """Return the seconds of each load by engine, a number for each round; the first round warms up."""
    rng = random.Random(5)
    record: dict[str, Any] = {name: {way: [] for way in engines} for name in LOADS}
    for number in range(rounds + 1):
        for name, (at_once, answer) in LOADS.items():
            prompts = [[rng.randrange(10, 500) for _ in range(PROMPT)] for _ in range(at_once)]
            turn = dict([*engines.items()][:: -1 if number % 2 else 1])
            seconds = served(turn, prompts, answer, f"{name} {number}")
            if number:
                for way in engines:
                    record[name][way].append(seconds[way])
    return record


def markdown(record: dict[str, Any]) -> str:
    """Return tokens per processor second and the ratio of the seconds of all rounds. Pure."""
    lines = [
        f"# Batch-invariant mode: {record['model']}, float32, one thread",
        "",
        f"- machine: {record['machine']['processor']}, load {record['machine']['load_average']}",
        f"- {record['rounds']} rounds; prompts of {PROMPT} tokens, answers of {ANSWER}; steps take turns",
        "",
        "| work | default, tokens per processor second | batch-invariant | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, seconds in record["loads"].items():
        at_once, answer = LOADS[name]
        tokens = record["rounds"] * at_once * (PROMPT if answer == 1 else answer - 1)
        default, invariant = (sum(seconds[way]) for way in ("default", "invariant"))
        lines.append(
            f"| {name} | {tokens / default:,.0f} | {tokens / invariant:,.0f} | {invariant / default:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, and keep the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batch_invariant", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, default=TINY)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    engines = {
        "default": booted(options.model, invariant=False),
        "invariant": booted(options.model, invariant=True),
    }
    record = {
        "benchmark": "batch-invariant",
        "model": options.model.name,
        "rounds": options.rounds,
        "machine": facts(),
        "loads": measured(engines, options.rounds),
    }
    print_and_keep(record, markdown(record), options.out)


if __name__ == "__main__":
    main()
