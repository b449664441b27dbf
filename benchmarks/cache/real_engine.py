"""The state cache in real engines on the CPU: what it costs, what it saves, and how the strategies differ.

Run as `python -m benchmarks.cache.real_engine`; writes JSON and Markdown to benchmarks/results. Engines run
in this process, with overlap; what is compared is measured in turns within one run.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.cache.record import write
from benchmarks.checkpoint import random_350m
from benchmarks.serve import CACHE

from mamba_server.engine.boot import Engine, boot
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")


@dataclass(frozen=True, slots=True)
class Case:
    """One model and the loads that fit it on a CPU."""

    name: str
    arena: int
    """Bytes of the arena where its size is not the question."""
    arenas: tuple[int, ...]
    """And where it is."""
    chats: int
    """Two-turn chats at once there."""
    answer: int
    rounds: int

    def model(self) -> str:
        """Parse a directory or URI; the random checkpoint is written if it does not exist."""
        return "builtin://tiny-recall" if self.name == "tiny" else str(random_350m(CACHE / "random-350m"))


CASES = (
    Case("tiny", 64 << 20, (1 << 20, 2 << 20, 4 << 20), chats=24, answer=40, rounds=25),
    Case("350m", 1 << 30, (192 << 20, 384 << 20, 768 << 20), chats=10, answer=24, rounds=3),
)


@dataclass(frozen=True, slots=True)
class BatchRun:
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
    def tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + sum(map(len, self.outputs))


@contextmanager
def engine(model: str, **settings: Any) -> Iterator[Engine]:
    """Yield an engine with overlap; its memory is released at the end."""
    engine_settings = {"strategy": "ExtraBuffer", "arena_bytes": 64 << 20, "overlap": True, **settings}
    instance = boot(EngineSettings(model=model, device="cpu", **engine_settings), lambda *_: None)
    try:
        yield instance
    finally:
        instance.stream.close()
        del instance
        gc.collect()


def prompts(count: int, length: int, seed: int, vocabulary: int) -> list[list[int]]:
    """Return random prompts, all different."""
    rng = np.random.default_rng(seed)
    token_ids: list[list[int]] = rng.integers(5, vocabulary, (count, length)).tolist()
    return token_ids


def run(of: Engine, wanted: Sequence[Sequence[int]], outputs: int, *, turn_boundary: int = 0) -> BatchRun:
    """Run all prompts at once until idle. Raises RuntimeError if one is refused or a step fails."""
    core, seen = of.core, of.core.scheduler.counters
    prompt_tokens, cached = seen.prompt_tokens, seen.cached_tokens
    params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
    wall, cpu = time.perf_counter(), time.process_time()
    for number, prompt in enumerate(wanted):
        refused = core.add(AddRequest(f"r{number}", TokenIds(prompt), params, turn_boundary=turn_boundary))
        if refused is not None:
            raise RuntimeError(refused.message)
    answers: dict[str, list[int]] = {f"r{number}": [] for number in range(len(wanted))}
    first, most = 0.0, 0
    while not core.idle:
        for delta in core.step():
            first = first or time.perf_counter() - wall
            answers[delta.request_id].extend(delta.token_ids)
        most = max(most, core.scheduler.running)
    if core.failed_steps:
        raise RuntimeError(core.last_error)
    return BatchRun(
        time.perf_counter() - wall, time.process_time() - cpu, first, seen.prompt_tokens - prompt_tokens,
        seen.cached_tokens - cached, list(answers.values()), most,
    )  # fmt: skip


def without_reuse(model: str, case: Case) -> dict[str, Any]:
    """Compare caching on and off with no prompt twice, case (a): medians of ratios of neighbouring rounds."""
    wall, cpu = [], []
    with (
        engine(model, arena_bytes=case.arena) as on,
        engine(model, arena_bytes=case.arena, prefix_caching=False) as off,
    ):
        vocabulary = on.model.vocab_size
        for each in (on, off):
            run(each, prompts(4, 256, 999, vocabulary), 16)
        for number in range(case.rounds):
            # Of lengths as they come: multiples of the chunk would flatter the engine that never splits one.
            lengths = np.random.default_rng(number).integers(200, 313, 4).tolist()
            load = [prompts(1, length, 10 * number + i, vocabulary)[0] for i, length in enumerate(lengths)]
            order = (on, off) if number % 2 else (off, on)
            results = {id(each): run(each, load, 64) for each in order}
            a, b = results[id(on)], results[id(off)]
            wall.append(b.wall / a.wall)
            cpu.append(b.cpu / a.cpu)
    return {
        "rounds": case.rounds,
        "throughput_on_over_off_cpu": round(statistics.median(cpu), 3),
        "throughput_on_over_off_wall": round(statistics.median(wall), 3),
        "spread_cpu": [round(min(cpu), 3), round(max(cpu), 3)],
        "spread_wall": [round(min(wall), 3), round(max(wall), 3)],
    }


def shared_prefix(model: str, case: Case, prefix: int, rounds: int) -> dict[str, Any]:
    """Measure (b): time to the first token with a shared prefix, cold, on second sight, and later."""
    with engine(model, max_model_len=prefix + 512, arena_bytes=case.arena) as it:
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


def burst(model: str, case: Case, *, requests: int = 8, prefix: int = 1000, tail: int = 32) -> dict[str, Any]:
    """Measure (b): simultaneous requests with a new common prefix, caching on against off."""
    stem = prompts(1, prefix, 5, 200)[0]
    seconds, computed = {}, {}
    for caching in (True, False):
        with engine(model, arena_bytes=case.arena, prefix_caching=caching) as it:
            tails = prompts(requests, tail, 6, it.model.vocab_size)
            run(it, prompts(2, 40, 998, it.model.vocab_size), 4)
            ran = run(it, [stem + each for each in tails], 1)
        seconds[caching] = ran.wall
        computed[caching] = ran.prompt_tokens - ran.cached_tokens
    return {
        "requests": requests,
        "prefix_tokens": prefix,
        "computed_tokens": computed[True],
        "over_ideal": round(computed[True] / (prefix + requests * tail), 3),
        "computed_without_caching": computed[False],
        "seconds_over_without_caching": round(seconds[True] / seconds[False], 3),
    }


def conversation(
    model: str, strategy: str, track_interval: int, *, turns: int = 10, user: int = 120, answer: int = 60
) -> dict[str, Any]:
    """Measure (c): computed tokens of a chat, compared with all of its tokens."""
    longest = turns * (user + answer) + 1
    with engine(model, strategy=strategy, track_interval=track_interval, max_model_len=longest) as it:
        vocabulary, page = it.model.vocab_size, it.plan.page_size
        history: list[int] = []
        computed = aligned = 0
        for turn in prompts(turns, user, 0, vocabulary):
            history_length = len(history)
            history = history + turn
            ran = run(it, [history], answer, turn_boundary=len(history) - 4)
            # Of the answer, all but the last token go through the model as it is decoded.
            computed += ran.prompt_tokens - ran.cached_tokens + answer - 1
            aligned += len(history) - history_length // page * page + answer - 1
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


def two_turns(it: Engine, case: Case) -> tuple[BatchRun, BatchRun]:
    """Run chats on four shared stems, all at once, and their second turns; the engine is warm then."""
    vocabulary = it.model.vocab_size
    run(it, prompts(2, 40, 998, vocabulary), 4)
    stems, tails = prompts(4, 64, 0, vocabulary), prompts(case.chats, 24, 100, vocabulary)
    first = [stems[index % 4] + tail for index, tail in enumerate(tails)]
    one = run(it, first, case.answer)
    again = prompts(case.chats, 24, 200, vocabulary)
    second = [a + b + c for a, b, c in zip(first, one.outputs, again, strict=True)]
    return one, run(it, second, case.answer)


def strategies(model: str, case: Case) -> list[dict[str, Any]]:
    """Measure (d): the strategies at some arena sizes."""
    rows = []
    for arena in case.arenas:
        for name in STRATEGIES:
            with engine(model, strategy=name, arena_bytes=arena, max_model_len=384) as it:
                result = two_turns(it, case)
                slabs = it.core.cache.capacity.slabs
            tokens = sum(each.tokens for each in result)
            rows.append(
                {
                    "arena_mib": arena / 2**20,
                    "slabs": slabs,
                    "strategy": name,
                    "most_running": max(each.most_running for each in result),
                    "hit_rate": round(
                        sum(each.cached_tokens for each in result)
                        / sum(each.prompt_tokens for each in result),
                        4,
                    ),
                    "tokens_per_second": round(tokens / sum(each.wall for each in result), 1),
                    "tokens_per_cpu_second": round(tokens / sum(each.cpu for each in result), 1),
                }
            )
            print(rows[-1], flush=True)
    return rows


def markdown(found: dict[str, Any]) -> list[str]:
    """Return all four measurements as text and tables."""
    a, b, c = found["without_reuse"], found["shared_prefix"], found["burst"]
    low, high = a["spread_cpu"]
    lines = [
        f"- model: {found['model']}, in float32; engines in one process, with overlap, one thread a side",
        "- ratios are medians of neighbouring rounds; CPU time is the process's own, wall time feels others",
        "",
        f"No reuse: throughput with caching {a['throughput_on_over_off_cpu']} of that without by CPU time",
        f"(rounds between {low} and {high}), {a['throughput_on_over_off_wall']} by the wall",
        f"({a['rounds']} rounds between {a['spread_wall'][0]} and {a['spread_wall'][1]}).",
        "",
        f"Shared prefix of {b['prefix_tokens']:,} tokens, time to first token over cold: on second sight",
        f"{b['second_over_cold']} ({b['cached_tokens']['second']:,} tokens resumed), from the third on",
        f"{b['third_over_cold']} ({b['cached_tokens']['third']:,}).",
        "",
        f"Burst of {c['requests']} requests with one unseen prefix of {c['prefix_tokens']:,} tokens:",
        f"{c['computed_tokens']:,} prompt tokens computed, {c['over_ideal']} of the ideal. Without caching:",
        f"{c['computed_without_caching']:,}; the time was {c['seconds_over_without_caching']} of that.",
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
        "| arena, MiB | slabs | strategy | most running | hit rate | tokens/s | tokens per CPU second |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {row['arena_mib']:g} | {row['slabs']} | {row['strategy']} | {row['most_running']} "
        f"| {row['hit_rate']:.1%} | {row['tokens_per_second']:,} | {row['tokens_per_cpu_second']:,} |"
        for row in found["strategies"]
    ]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cache.real_engine", description=__doc__)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="one of them; default all")
    parser.add_argument("--prefix", type=int, default=10_000)
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(1)
    chats = [(name, 256, 60) for name in STRATEGIES]
    chats += [("ExtraBuffer", 256, 600), ("ExtraBuffer", 1024, 600)]
    for case in CASES:
        if options.case not in {None, case.name}:
            continue
        model = case.model()
        record = {
            "model": "builtin://tiny-recall"
            if case.name == "tiny"
            else "random Nemotron-H of 350M parameters",
            # Counts of tokens: the same for any model.
            "conversation": [
                conversation(model, name, interval, answer=answer) for name, interval, answer in chats
            ]
            if case.name == "tiny"
            else [],
            "without_reuse": without_reuse(model, case),
            "shared_prefix": shared_prefix(model, case, options.prefix, min(3, case.rounds)),
            "burst": burst(model, case),
            "strategies": strategies(model, case),
        }
        write(f"cache-real-engine-{case.name}", record, markdown(record))


if __name__ == "__main__":
    main()
