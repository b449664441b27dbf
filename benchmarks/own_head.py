"""Tokens per processor second of the shipped model with its own head for drafts, and without.

Run as `python -m benchmarks.own_head`; with `--draft URI` the model there drafts in place of the head. The
prompts are the beginnings of conversations as the model was trained with; answers go on behind the end of a
turn, so that each has enough tokens. Ways take turns, answer by answer, and every answer is compared with the
one without drafts. Processor time of one thread says the same on a busy machine, within some percent.
"""

import argparse
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.cache.record import print_and_keep
from benchmarks.machine import facts
from benchmarks.serve import TINY

from mamba_server.engine.boot import Engine, boot, use_threads
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings
from training.tiny_recall import tokenizer
from training.tiny_recall.conversation import Mix
from training.tiny_recall.recipe import Stage
from training.tiny_recall.train import batch

PROMPT = 160
SEED = 5


def prompts(count: int) -> list[list[int]]:
    """Return the first tokens of `count` conversations."""
    stage = Stage(256, count, 1, Mix(bare=0.2, idle=0.3, skill=0.15))
    rows, _ = batch(Random(SEED), tokenizer.build(), stage)
    return [[int(token) for token in row[:PROMPT]] for row in rows]


def booted(model: Path, drafts: int, draft: str | None) -> Engine:
    """Return an engine with the head or a draft model, or without drafts for 0."""
    source = "mtp" if draft is None else f"draft={draft}"
    settings = EngineSettings(
        model=str(model), device="cpu", seed=0, arena_bytes=100 << 20, prefix_caching=False,
        speculation=source if drafts else "off", speculative_tokens=max(1, drafts),
    )  # fmt: skip
    engine = boot(settings, lambda *_: None)
    use_threads(engine, 1)
    return engine


def answer(engine: Engine, prompt: list[int], name: str, count: int) -> tuple[list[int], float, float]:
    """Return the tokens of an answer, their rate behind the first step, and the tokens of a step."""
    params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
    engine.core.add(AddRequest(name, TokenIds(prompt), params))
    tokens: list[int] = []
    first = steps = 0
    began = 0.0
    while not engine.core.idle:
        for delta in engine.core.step():
            tokens += delta.token_ids
        if tokens and not first:
            first, steps, began = len(tokens), engine.core.step_number, time.process_time()
    seconds = time.process_time() - began
    behind = len(tokens) - first
    return tokens, behind / seconds, behind / (engine.core.step_number - steps)


def measured(engines: dict[int, Engine], texts: list[list[int]], rounds: int, count: int) -> dict[str, Any]:
    """Return the rates and the tokens of a step, by the number of drafts. Raises SystemExit."""
    rates: dict[int, list[float]] = {drafts: [] for drafts in engines}
    lengths: dict[int, list[float]] = {drafts: [] for drafts in engines}
    for number in range(rounds + 1):
        for place, prompt in enumerate(texts):
            true: list[int] = []
            for drafts, engine in engines.items():
                tokens, rate, length = answer(engine, prompt, f"{number} {place}", count)
                true = true or tokens
                if tokens != true:
                    raise SystemExit(f"prompt {place}: {drafts} drafts change the answer")
                if number:  # the first round warms up
                    rates[drafts].append(rate)
                    lengths[drafts].append(length)
    return {str(drafts): {"rates": rates[drafts], "tokens_per_step": lengths[drafts]} for drafts in engines}


def markdown(record: dict[str, Any]) -> str:
    """Return medians of the ratios within a turn. Pure."""
    source = (
        "the shipped model's own head" if record["draft"] is None else f"a draft model, {record['draft']}"
    )
    lines = [
        f"# Drafts of {source}, one sequence, one thread",
        "",
        f"- machine: {record['machine']['processor']}, load {record['machine']['load_average']}",
        f"- {record['answers']} answers of {record['tokens']} tokens; tokens per processor second",
        "",
        "| drafts | tokens a step | rate | rate / off |",
        "| --- | --- | --- | --- |",
    ]
    off = record["ways"]["0"]["rates"]
    for drafts, way in record["ways"].items():
        ratio = median(mine / plain for mine, plain in zip(way["rates"], off, strict=True))
        length = sum(way["tokens_per_step"]) / len(way["tokens_per_step"])
        lines.append(f"| {drafts} | {length:.2f} | {median(way['rates']):.0f} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_head", description=__doc__)
    parser.add_argument("--model", type=Path, default=TINY)
    parser.add_argument("--draft", metavar="URI", help="model that drafts in place of the head")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file for all numbers as JSON")
    options = parser.parse_args()
    engines = {drafts: booted(options.model, drafts, options.draft) for drafts in (0, *options.drafts)}
    ways = measured(engines, prompts(options.prompts), options.rounds, options.tokens)
    answers = options.rounds * options.prompts
    record = {
        "draft": options.draft,
        "tokens": options.tokens,
        "answers": answers,
        "machine": facts(),
        "ways": ways,
    }
    print_and_keep(record, markdown(record), options.out)


if __name__ == "__main__":
    main()
