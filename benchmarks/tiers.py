"""States that move, in real engines on the CPU: the cost of a cold tier, the gain of a warm one, a hand-over.

Run as `python -m benchmarks.tiers`; writes JSON and Markdown to benchmarks/results. Engines run in this
process. What is compared is measured in turns within one run, so that other load meets both sides.
"""

import argparse
import gc
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.cache.record import write
from benchmarks.checkpoint import random_350m
from benchmarks.serve import CACHE

from mamba_server.engine.boot import Engine, boot
from mamba_server.engine.transfers.start import TransferEndpoint, start_transfers
from mamba_server.wire import AddRequest, Fetch, HandOver, SamplingParams, TokenIds
from mamba_settings.engine_settings import EngineSettings

ANSWER = 4
"""Tokens of each answer."""


@dataclass(slots=True)
class Instance:
    """An engine with its transfers."""

    engine: Engine
    endpoint: TransferEndpoint


@contextmanager
def instance(model: str, **settings: Any) -> Iterator[Instance]:
    """Yield an engine; at the end it saves its states to its disk tier, if it has one."""
    values = EngineSettings(model=model, device="cpu", seed=0, overlap=True, **settings)
    engine = boot(values, lambda *_: None)
    endpoint = start_transfers(
        engine.core, values, engine.stream, engine.memory, engine.state_layout, lambda: None
    )
    try:
        yield Instance(engine, endpoint)
    finally:
        if engine.core.transfers is not None:
            engine.core.transfers.close(save=True)
        engine.stream.close()
        del engine
        gc.collect()


def prompts(count: int, length: int, seed: int, vocabulary: int) -> list[TokenIds]:
    """Return random prompts, all different."""
    rng = np.random.default_rng(seed)
    return [TokenIds(row) for row in rng.integers(5, vocabulary, (count, length)).tolist()]


def request(name: str, prompt: TokenIds, **fields: Any) -> AddRequest:
    """Return a greedy request."""
    params = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True)
    return AddRequest(name, prompt, params, **fields)


@dataclass(frozen=True, slots=True)
class Run:
    """One batch of requests: seconds of wall clock, of this process's CPU, and to the first token."""

    wall: float
    cpu: float
    first_token: float
    cached_tokens: int
    handed: dict[str, HandOver]


def run(of: Instance, requests: Sequence[AddRequest], *others: Instance) -> Run:
    """Run all requests at once until idle. Raises RuntimeError if one is refused."""
    core, handed, first = of.engine.core, {}, 0.0
    cached = core.scheduler.counters.cached_tokens
    wall, cpu = time.perf_counter(), time.process_time()
    for each in requests:
        if (refused := core.add(each)) is not None:
            raise RuntimeError(refused.message)
    while not core.idle:
        for delta in core.step():
            if delta.token_ids or delta.hand_over is not None:
                first = first or time.perf_counter() - wall
            if delta.hand_over is not None:
                handed[delta.request_id] = delta.hand_over
        for other in others:
            other.engine.core.step()
        if core.awaits_states:
            time.sleep(0.0002)
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    return Run(*seconds, first, core.scheduler.counters.cached_tokens - cached, handed)


def cold_tier(model: str, arena: int, length: int, count: int, rounds: int) -> dict[str, Any]:
    """Compare the throughput of new prompts, whose states push others out, with a tier and without."""
    ratios: dict[str, list[float]] = {"wall": [], "cpu": []}
    demoting, running = 0.0, 0.0
    folder = Path(tempfile.mkdtemp(prefix="tiers-"))
    tier = {"disk_cache": str(folder), "disk_cache_bytes": 8 << 30}
    try:
        with instance(model, arena_bytes=arena) as off, instance(model, arena_bytes=arena, **tier) as on:
            vocabulary = off.engine.model.vocab_size
            for number in range(rounds + 1):
                batch = prompts(count, length, number, vocabulary)
                sides = [off, on] if number % 2 else [on, off]
                runs = {id(side): run(side, [request(f"{number}-{i}", p) for i, p in enumerate(batch)])
                        for side in sides}  # fmt: skip
                demotions = _demoted_seconds(on)
                if number:  # the first round fills both caches
                    ratios["wall"].append(runs[id(off)].wall / runs[id(on)].wall)
                    ratios["cpu"].append(runs[id(off)].cpu / runs[id(on)].cpu)
                    demoting, running = demoting + demotions, running + runs[id(on)].wall
            assert on.engine.core.transfers is not None
            counters = on.engine.core.transfers.counters()
            tokens = rounds * count * (length + ANSWER)
    finally:
        shutil.rmtree(folder)
    return {
        "tokens": tokens,
        "throughput_with_tier": {name: statistics.median(values) for name, values in ratios.items()},
        "all": ratios,
        "share_of_time_in_demotions": demoting / running,
        "counters": counters,
    }


def _demoted_seconds(of: Instance) -> float:
    """Return the seconds for which the loop copied evicted states, since the last call."""
    assert of.engine.core.transfers is not None
    return sum(
        seconds for direction, seconds in of.engine.core.transfers.take_seconds() if direction == "demoted"
    )


def warm_start(model: str, arena: int, length: int, rounds: int) -> dict[str, Any]:
    """Compare the time to the first token of a prompt that comes from disk with computing it."""
    computed, restored, cached = [], [], []
    for number in range(rounds):
        folder = Path(tempfile.mkdtemp(prefix="tiers-"))
        tier = {"disk_cache": str(folder), "disk_cache_bytes": 8 << 30}
        try:
            with instance(model, arena_bytes=arena, **tier) as first:
                prompt = prompts(1, length, 100 + number, first.engine.model.vocab_size)[0]
                warm_up(first)
                computed.append(run(first, [request("cold", prompt)]).first_token)
            with instance(model, arena_bytes=arena, **tier) as second:
                warm_up(second)
                again = run(second, [request("warm", prompt)])
                restored.append(again.first_token)
                cached.append(again.cached_tokens)
        finally:
            shutil.rmtree(folder)
    ratio = statistics.median(b / a for a, b in zip(computed, restored, strict=True))
    return {"computed": computed, "restored": restored, "cached_tokens": cached, "ratio": ratio}


def warm_up(of: Instance) -> None:
    """Compute one short prompt: the first step of an engine takes longer."""
    run(of, [request("warm up", TokenIds(range(5, 70)))])


def raw_seconds(size: int) -> float:
    """Return the seconds that `size` bytes take over a plain loopback connection, the best of five."""
    source, landing, best = memoryview(bytes(size)), memoryview(bytearray(size)), float("inf")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for _ in range(5):
            with socket.create_connection(listener.getsockname()) as near, listener.accept()[0] as far:
                sender = threading.Thread(target=near.sendall, args=(source,))
                began, place = time.perf_counter(), 0
                sender.start()
                while place < size:
                    place += far.recv_into(landing[place:])
                best = min(best, time.perf_counter() - began)
                sender.join()
    return best


def hand_over(model: str, arena: int, length: int, rounds: int) -> dict[str, Any]:
    """Measure what a hand-over adds to the first token beyond the same hit and the time of its bytes."""
    added, moves, hits, steps = [], [], [], []
    both = {"arena_bytes": arena, "transfer_port": 0}
    with instance(model, **both) as prefill, instance(model, **both) as decode:
        vocabulary = prefill.engine.model.vocab_size
        for side in (prefill, decode):
            warm_up(side)
        for number in range(rounds):
            prompt = prompts(1, length, 200 + number, vocabulary)[0]
            name = f"h{number}"
            asked = msgspec.structs.replace(request(name, prompt), hand_over=True)
            handed = run(prefill, [asked]).handed[name]
            fetch = Fetch(prefill.endpoint.address, prefill.endpoint.incarnation, handed.depth, handed.export)
            assert decode.engine.core.transfers is not None
            decode.engine.core.transfers.take_seconds()
            arrived = run(decode, [request(name, prompt, fetch=fetch)], prefill)
            moves.append(max(seconds for _, seconds in decode.engine.core.transfers.take_seconds()))
            hit = run(decode, [request(f"again{number}", prompt)])
            hits.append(hit.first_token)
            added.append(arrived.first_token - hit.first_token)
            steps.append(decode.engine.core.speed.decode_seconds)
        layout = prefill.engine.state_layout
        size = layout.state_bytes + length // layout.page_size * layout.page_bytes
    step, raw = statistics.median(steps), raw_seconds(size)
    beyond = statistics.median(added) - raw
    return {
        "bytes": size,
        "raw_seconds": raw,
        "bundle_seconds": moves,
        "hit_seconds": hits,
        "added_seconds": added,
        "decode_step_seconds": step,
        "added_beyond_the_bytes_in_steps": beyond / step if step else 0.0,
    }


def main() -> None:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="the shipped model, to see that it runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="*", default=["cold", "warm", "hand-over"])
    options = parser.parse_args()
    if options.tiny:
        model, arena, length, long, count = "builtin://tiny-recall", 4 << 20, 400, 1800, 12
    else:
        model = str(random_350m(CACHE / "random-350m"))
        arena, length, long, count = 512 << 20, 1536, 16_128, 4
    lines = ["", "| what | value | target |", "| --- | --- | --- |"]
    results: dict[str, Any] = {"model": Path(model).name}
    if "cold" in options.parts:
        cold = results["cold"] = cold_tier(model, arena, length, count, options.rounds * 2)
        shares = cold["throughput_with_tier"]
        lines += [
            f"| throughput with a cold disk tier, wall clock | {shares['wall']:.3f} | 0.97 |",
            f"| the same by CPU seconds | {shares['cpu']:.3f} | 0.97 |",
            f"| share of the time in demotions | {cold['share_of_time_in_demotions']:.4f} | 0.03 |",
        ]
    if "warm" in options.parts:
        warm = results["warm"] = warm_start(model, arena, long, options.rounds)
        lines += [
            f"| first token of {long} tokens from disk, of computing it | {warm['ratio']:.3f} | 0.3 |",
            f"| seconds to compute it | {statistics.median(warm['computed']):.2f} | |",
            f"| seconds from disk | {statistics.median(warm['restored']):.3f} | |",
        ]
    if "hand-over" in options.parts:
        handed = results["hand_over"] = hand_over(model, arena, length, options.rounds)
        steps = handed["added_beyond_the_bytes_in_steps"]
        lines += [
            f"| bytes of a hand-over of {length} tokens | {handed['bytes']:,} | |",
            f"| seconds of as many bytes over a plain socket | {handed['raw_seconds']:.4f} | |",
            f"| seconds until they are installed | {statistics.median(handed['bundle_seconds']):.4f} | |",
            f"| added beyond the bytes, in decode steps | {steps:.2f} | |",
        ]
    parts = "" if len(results) == 4 else "-" + "-".join(options.parts)
    write(f"tiers{'-tiny' if options.tiny else ''}{parts}", results, lines)


if __name__ == "__main__":
    main()
