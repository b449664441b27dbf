"""The state cache in real engines on the CPU: what it costs, what it saves, and how the strategies differ.

Run as `python -m benchmarks.cache.real_engine`; writes JSON and Markdown to benchmarks/results. Engines run
in this process, one step at a time, without overlap; what is compared is measured in turns within one run.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.cache.record import write

from mamba_server.engine.boot import Engine, boot
from mamba_server.settings import EngineSettings
from mamba_server.wire import AddRequest, SamplingParams

MODEL = "builtin://tiny-recall"
STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")


@dataclass(frozen=True, slots=True)
class Ran:
    """One batch of requests: seconds of wall clock and of this process's CPU, and what came of it."""

    wall: float
    cpu: float
    first_token: float
    """Wall seconds to the first token of the first request that got one."""
    prompt_tokens: int
    cached_tokens: int
    outputs: list[list[int]]
    most_running: int

    @property
    def rate(self) -> float:
        """Prompt and output tokens for each CPU second."""
        return (self.prompt_tokens + sum(map(len, self.outputs))) / self.cpu


def engine(model: str, **settings: Any) -> Engine:
    """An engine without overlap."""
    wanted = {"strategy": "ExtraBuffer", "arena_bytes": 64 << 20, "overlap": False, **settings}
    return boot(EngineSettings(model=model, device="cpu", **wanted), lambda *_: None)


def prompts(count: int, length: int, seed: int, vocabulary: int) -> list[list[int]]:
    """Random prompts, all different."""
    rng = np.random.default_rng(seed)
    found: list[list[int]] = rng.integers(5, vocabulary, (count, length)).tolist()
    return found


def run(of: Engine, wanted: Sequence[Sequence[int]], outputs: int, *, turn_boundary: int = 0) -> Ran:
    """All prompts at once, stepped until idle. Raises RuntimeError if one is refused or a step fails."""
    core, seen = of.core, of.core.scheduler.counters
    prompt_tokens, cached = seen.prompt_tokens, seen.cached_tokens
    params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
    wall, cpu = time.perf_counter(), time.process_time()
    for number, prompt in enumerate(wanted):
        refused = core.add(AddRequest(f"r{number}", list(prompt), params, turn_boundary=turn_boundary))
        if refused is not None:
            raise RuntimeError(refused.message)
    made: dict[str, list[int]] = {f"r{number}": [] for number in range(len(wanted))}
    first, most = 0.0, 0
    while not core.idle:
        for delta in core.step():
            first = first or time.perf_counter() - wall
            made[delta.request_id].extend(delta.token_ids)
        most = max(most, core.scheduler.running)
    if core.failed_steps:
        raise RuntimeError(core.last_error)
    return Ran(
        time.perf_counter() - wall, time.process_time() - cpu, first, seen.prompt_tokens - prompt_tokens,
        seen.cached_tokens - cached, list(made.values()), most,
    )  # fmt: skip


def without_reuse(model: str, rounds: int) -> dict[str, Any]:
    """(a) Caching on and off, no prompt twice: medians of the ratios of neighbouring rounds."""
    on, off = engine(model), engine(model, prefix_caching=False)
    vocabulary = on.model.vocab_size
    for each in (on, off):
        run(each, prompts(4, 256, 999, vocabulary), 16)
    wall, cpu = [], []
    for number in range(rounds):
        load = prompts(4, 256, number, vocabulary)
        order = (on, off) if number % 2 else (off, on)
        made = {id(each): run(each, load, 64) for each in order}
        a, b = made[id(on)], made[id(off)]
        wall.append(b.wall / a.wall)
        cpu.append(b.cpu / a.cpu)
    return {
        "rounds": rounds,
        "throughput_on_over_off_cpu": round(statistics.median(cpu), 3),
        "throughput_on_over_off_wall": round(statistics.median(wall), 3),
        "spread_cpu": [round(min(cpu), 3), round(max(cpu), 3)],
    }


def shared_prefix(model: str, prefix: int, rounds: int) -> dict[str, Any]:
    """(b) Time to the first token with a shared prefix: cold, on second sight, and from then on."""
    it = engine(model, max_model_len=prefix + 512)
    vocabulary = it.model.vocab_size
    times: dict[str, list[float]] = {"cold": [], "second": [], "third": []}
    cached: dict[str, int] = {}
    for number in range(rounds):
        stem = prompts(1, prefix, number, vocabulary)[0]
        for sight, tail in zip(times, prompts(3, 32, 1000 + number, vocabulary), strict=True):
            ran = run(it, [stem + tail], 1)
            times[sight].append(ran.first_token)
            cached[sight] = ran.cached_tokens
    medians = {sight: statistics.median(each) for sight, each in times.items()}
    return {
        "prefix_tokens": prefix,
        "rounds": rounds,
        "ttft_seconds": {sight: round(value, 4) for sight, value in medians.items()},
        "cached_tokens": cached,
        "second_over_cold": round(medians["second"] / medians["cold"], 4),
        "third_over_cold": round(medians["third"] / medians["cold"], 4),
    }


def conversation(
    model: str, strategy: str, track_interval: int, *, turns: int = 10, user: int = 120, answer: int = 60
) -> dict[str, Any]:
    """(c) Tokens that went through the model in a chat, against every token of it once."""
    it = engine(model, strategy=strategy, track_interval=track_interval)
    vocabulary, page = it.model.vocab_size, it.plan.page_size
    history: list[int] = []
    computed = aligned = 0
    for turn in prompts(turns, user, 0, vocabulary):
        known = len(history)
        history = history + turn
        ran = run(it, [history], answer, turn_boundary=len(history) - 4)
        # Of the answer, all but the last token go through the model as it is decoded.
        computed += ran.prompt_tokens - ran.cached_tokens + answer - 1
        aligned += len(history) - known // page * page + answer - 1
        history += ran.outputs[0]
    return {
        "strategy": strategy,
        "track_interval": track_interval,
        "turns": turns,
        "user_tokens": user,
        "answer_tokens": answer,
        "computed_tokens": computed,
        "over_ideal": round(computed / (len(history) - 1), 3),
        "over_page_aligned_ideal": round(computed / aligned, 3),
    }


def strategies(model: str, arenas: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """(d) The strategies at some arena sizes: chats of two turns on a few shared stems."""
    rows = []
    for arena in arenas:
        engines = {
            name: engine(model, strategy=name, arena_bytes=arena, max_model_len=384, track_interval=32)
            for name in STRATEGIES
        }
        made: dict[str, list[Ran]] = {name: [] for name in STRATEGIES}
        for number in range(rounds):
            for name, it in engines.items():
                vocabulary = it.model.vocab_size
                stems = prompts(4, 64, number, vocabulary)
                tails = prompts(24, 24, 100 + number, vocabulary)
                first = [stems[index % 4] + tail for index, tail in enumerate(tails)]
                one = run(it, first, 40)
                again = prompts(24, 24, 200 + number, vocabulary)
                second = [a + b + c for a, b, c in zip(first, one.outputs, again, strict=True)]
                made[name] += [one, run(it, second, 40)]
        for name, ran in made.items():
            total = sum(each.prompt_tokens for each in ran)
            rows.append(
                {
                    "arena_mib": arena / 2**20,
                    "strategy": name,
                    "most_running": max(each.most_running for each in ran),
                    "hit_rate": round(sum(each.cached_tokens for each in ran) / total, 4),
                    "tokens_per_cpu_second": round(statistics.median(each.rate for each in ran), 1),
                }
            )
            print(rows[-1], flush=True)
    return rows


def markdown(found: dict[str, Any]) -> list[str]:
    """All four as text and tables."""
    a, b = found["without_reuse"], found["shared_prefix"]
    low, high = a["spread_cpu"]
    lines = [
        f"- model: {found['model']}, in float32; engines in one process, one thread, without overlap",
        "- ratios are medians of neighbouring rounds; CPU time is the process's own, wall time feels others",
        "",
        f"No reuse: throughput with caching {a['throughput_on_over_off_cpu']} of that without by CPU time",
        f"(rounds between {low} and {high}), {a['throughput_on_over_off_wall']} by the wall.",
        "",
        f"Shared prefix of {b['prefix_tokens']:,} tokens, time to first token over cold: on second sight",
        f"{b['second_over_cold']} ({b['cached_tokens']['second']:,} tokens resumed), from the third on",
        f"{b['third_over_cold']} ({b['cached_tokens']['third']:,}).",
        "",
        "| chat: strategy | track interval | answer | computed tokens | over the ideal | over page-aligned |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['strategy']} | {row['track_interval']} | {row['answer_tokens']} "
        f"| {row['computed_tokens']:,} | {row['over_ideal']} | {row['over_page_aligned_ideal']} |"
        for row in found["conversation"]
    ]
    lines += [
        "",
        "| arena, MiB | strategy | most running | hit rate | tokens per CPU second |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['arena_mib']:g} | {row['strategy']} | {row['most_running']} | {row['hit_rate']:.1%} "
        f"| {row['tokens_per_cpu_second']:,} |"
        for row in found["strategies"]
    ]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.real_engine", description=__doc__)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefix", type=int, default=10_000)
    asked = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    chats = [(name, 256, 60) for name in STRATEGIES]
    chats += [("ExtraBuffer", 256, 600), ("ExtraBuffer", 1024, 600)]
    found = {
        "model": asked.model,
        "conversation": [
            conversation(asked.model, name, interval, answer=answer) for name, interval, answer in chats
        ],
        "without_reuse": without_reuse(asked.model, asked.rounds),
        "shared_prefix": shared_prefix(asked.model, asked.prefix, max(1, asked.rounds // 4)),
        "strategies": strategies(asked.model, [1 << 20, 2 << 20, 4 << 20], 1),
    }
    write("cache-real-engine", found, markdown(found))


if __name__ == "__main__":
    main()
