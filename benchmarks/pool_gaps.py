"""Gaps between tokens while long prompts arrive: at a decode pool, and at a pair of unified engines.

Run as `python -m benchmarks.pool_gaps`; writes JSON and Markdown to benchmarks/results. Two engines each, one
of them on either core, of the shipped model. Phases take turns: the streams of each pair alone, then beside
prompts that come one after the other without end, and as a control beside a process that computes without end
on the core of the first engine. No state arrives in the control, so its gaps show what shared cores cost.
Drafts are off unless `--speculation` says otherwise: a step with drafts brings several tokens at once, and
its gap is theirs together, so tokens a second stand beside the gaps. Several values take turns, too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from random import Random
from statistics import median, quantiles
from typing import Any

import aiohttp
from benchmarks.cache.record import write
from benchmarks.engine import running_command

MODEL = "builtin://tiny-recall"
STREAMS = 4
TOKENS = 12_000
"""Most tokens of a stream; a phase ends before."""
MOST_PROMPTS = 150
"""Most prompts that one client sends in a phase."""
PAIRS = {"pools": ("prefill", "decode"), "unified": ("unified", "unified")}


@contextlib.contextmanager
def pair(roles: Sequence[str], speculation: str) -> Iterator[str]:
    """Run two engines, each on a core of its own where there are two, behind a gateway; yield its URL."""
    cores, whole = sorted(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        urls = []
        for number, role in enumerate(roles):
            os.sched_setaffinity(0, {cores[number % len(cores)]})
            try:
                urls.append(
                    stack.enter_context(
                        running_command(
                            "serve", "--model", MODEL, "--admin-port", "0", "--device", "cpu", "--role", role,
                            "--arena-bytes", str(128 << 20), "--transfer-port", "0", "--max-model-len",
                            "16384", "--speculation", speculation, variables={"OMP_NUM_THREADS": "1"},
                        )
                    )
                )  # fmt: skip
            finally:
                os.sched_setaffinity(0, whole)
        backends = [word for url in urls for word in ("--backend", url)]
        yield stack.enter_context(running_command("gateway", *backends))


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Run a process that computes without end on the core of the first engine."""
    process = os.fork()
    if process == 0:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        while True:
            pass
    try:
        yield
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def body(prompt: Sequence[int], tokens: int, *, stream: bool) -> dict[str, Any]:
    """Return a greedy request."""
    return {
        "model": "tiny-recall", "prompt": list(prompt), "max_tokens": tokens, "ignore_eos": True,
        "temperature": 0, "stream": stream,
    }  # fmt: skip


async def gaps_of(
    session: aiohttp.ClientSession, door: str, seed: int, until: float
) -> tuple[list[float], float]:
    """Return the gaps of one stream, in seconds, its beginning left out, and its tokens a second."""
    prompt, gaps, began, last = [5 + seed % 200] * 8, [], time.monotonic(), 0.0
    asked = body(prompt, TOKENS, stream=True)
    asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    tokens = 0
    async with session.post(f"{door}/v1/completions", json=asked) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if last:
                gaps.append(now - last)
            last = now
            if now >= until:
                tokens = json.loads(line[6:])["usage"]["completion_tokens"]
                break
    if not tokens:
        raise RuntimeError(f"a stream had {TOKENS} tokens before its phase ended: take a shorter --seconds")
    return gaps[5:], tokens / (last - began)


def long_prompts(length: int, seed: int, count: int) -> list[bytes]:
    """Return the bodies of requests with different prompts of `length` tokens."""
    rng = Random(f"prompt {seed}")
    prompts = ([rng.randrange(5, 250) for _ in range(length)] for _ in range(count))
    return [json.dumps(body(prompt, 4, stream=False)).encode() for prompt in prompts]


async def prompts_of(
    session: aiohttp.ClientSession, door: str, bodies: Sequence[bytes], waits: list[float]
) -> None:
    """Send one long prompt after the other until cancelled."""
    for each in bodies:
        began = time.monotonic()
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{door}/v1/completions", data=each, headers=headers) as answer:
            answer.raise_for_status()
            await answer.read()
        waits.append(time.monotonic() - began)
    raise RuntimeError(
        f"{len(bodies)} prompts were answered before the phase ended: take a shorter --seconds"
    )


async def phase(door: str, length: int, seconds: float, seed: int) -> tuple[list[float], float, list[float]]:
    """Return the gaps of the streams, their tokens a second together, and the seconds of each prompt.

    `length` 0 = no prompts.
    """
    waits: list[float] = []
    # To write a prompt takes this process 8 ms, in which it would take no token from a stream.
    prompts = [long_prompts(length, 10 * seed + each, MOST_PROMPTS) for each in range(2)] if length else []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        until = time.monotonic() + seconds
        work = [asyncio.create_task(prompts_of(session, door, bodies, waits)) for bodies in prompts]
        streams = (gaps_of(session, door, 10 * seed + number, until) for number in range(STREAMS))
        told = await asyncio.gather(*streams)
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return [gap for gaps, _ in told for gap in gaps], sum(rate for _, rate in told), waits


def p99(gaps: Sequence[float]) -> float:
    """Return the percentile in milliseconds."""
    return 1000 * quantiles(gaps, n=100, method="inclusive")[98]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pool_gaps", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a phase")
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--pairs", nargs="*", choices=[*PAIRS], default=[*PAIRS])
    parser.add_argument(
        "--speculation",
        nargs="+",
        default=["off"],
        help="values of --speculation, each for engines of its own",
    )
    options = parser.parse_args(arguments)
    kinds = {f"{name}, drafts {each}": (name, each) for name in options.pairs for each in options.speculation}
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        doors = {kind: stack.enter_context(pair(PAIRS[name], each)) for kind, (name, each) in kinds.items()}
        for number in range(options.rounds):
            for name, door in doors.items():
                alone, rate_alone, _ = asyncio.run(phase(door, 0, options.seconds, 3 * number))
                beside, rate_beside, waits = asyncio.run(
                    phase(door, options.prompt_tokens, options.seconds, 3 * number + 1)
                )
                with busy_core():
                    control, _, _ = asyncio.run(phase(door, 0, options.seconds, 3 * number + 2))
                found[name].append(
                    {
                        "alone_median_ms": 1000 * median(alone), "alone_p99_ms": p99(alone),
                        "beside_median_ms": 1000 * median(beside), "beside_p99_ms": p99(beside),
                        "control_median_ms": 1000 * median(control), "control_p99_ms": p99(control),
                        "alone_tokens_per_second": rate_alone, "beside_tokens_per_second": rate_beside,
                        "prompts": len(waits), "gaps": len(beside),
                        "ratio": p99(beside) / p99(alone), "ratio_of_control": p99(control) / p99(alone),
                        "load_average": os.getloadavg()[0],
                    }
                )  # fmt: skip
                print(name, found[name][-1], flush=True)
    columns = list(next(iter(found.values()))[0])
    lines = [
        "",
        (
            f"- {STREAMS} streams; two prompts of {options.prompt_tokens} tokens at a time; medians of "
            f"{options.rounds} rounds of {options.seconds:g} s each, which take turns"
        ),
        "",
        f"| two engines | {' | '.join(column.replace('_', ' ') for column in columns)} |",
        f"| --- | {' | '.join('---:' for _ in columns)} |",
    ]
    for name, rows in found.items():
        values = (f"{median(row[column] for row in rows):.3g}" for column in columns)
        lines.append(f"| {name} | {' | '.join(values)} |")
    write("pool-gaps", {"found": found}, lines)


if __name__ == "__main__":
    main()
