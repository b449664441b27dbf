"""Effect of a long prompt on a running stream: gaps between tokens, and the prompt's wait.

Run as `python -m benchmarks.stream_gaps`. One stream decodes all the time; meanwhile prompts that have
nothing in common come one after the other, through HTTP. With the engine's defaults and with large pieces of
a prompt. Without --model on the random 263M hybrid of the serving benchmark, written beside the caches. Gaps
while others took part of the cores are told apart: one busy neighbour doubles them where two threads compute.
"""

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import aiohttp
from benchmarks.cache.record import write
from benchmarks.checkpoint import existing_checkpoint, random_350m
from benchmarks.engine import running_engine
from benchmarks.other_load import PERIOD, OtherLoad

LARGE = "--chunked-prefill-tokens", "2048"
VARIANTS = {"default": (), "pieces of 2,048": LARGE}
CHECKPOINT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mambaserve/benchmarks/263m")
CALM = 0.25
"""Most cores that others may have had while a gap is called calm."""
VOCABULARY = 200
"""Token ids of the prompts: every model has so many."""


class TimedStream:
    """One answer without end and the times at which its tokens came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def run(self, session: aiohttp.ClientSession, url: str, tokens: int) -> None:
        """Read the stream until it is cancelled. Raises RuntimeError when it ends by itself."""
        body = {"model": await _model(session, url), "prompt": [5] * 8, "max_tokens": tokens}
        body |= {"stream": True, "ignore_eos": True, "temperature": 0}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    self.times.append(time.monotonic())
        raise RuntimeError("the stream ended before the prompts did: raise --stream-tokens")

    def gaps(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Return the beginning and end of each gap that ended within the time."""
        pairs = zip(self.times, self.times[1:], strict=False)
        return [(earlier, later) for earlier, later in pairs if begin <= later <= end]


async def first_token(session: aiohttp.ClientSession, url: str, length: int, seed: int) -> float:
    """Return the seconds until the only token of an answer to a new prompt."""
    rng = random.Random(seed)
    prompt = [rng.randrange(3, VOCABULARY) for _ in range(length)]
    body = {"model": await _model(session, url), "prompt": prompt, "max_tokens": 1, "ignore_eos": True}
    begin = time.monotonic()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        await response.read()
    return time.monotonic() - begin


def _seconds(spans: Sequence[tuple[float, float]]) -> list[float]:
    return [end - begin for begin, end in spans]


def _p99(gaps: Sequence[float]) -> float:
    """Return the percentile in milliseconds; not a number where there are too few gaps."""
    return round(1000 * quantiles(gaps, n=100, method="inclusive")[98], 1) if len(gaps) > 1 else math.nan


async def _model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


async def measure(url: str, length: int, prompts: int, stream_tokens: int) -> dict[str, Any]:
    """Measure the stream alone, a prompt alone, and both."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await first_token(session, url, 300, seed=0)  # warms up
        alone = await first_token(session, url, length, seed=1)
        stream = TimedStream()
        running = asyncio.create_task(stream.run(session, url, stream_tokens))
        await asyncio.sleep(5)
        quiet = _seconds(stream.gaps(0, time.monotonic())[1:])
        load = OtherLoad()
        with load.watching():
            await asyncio.sleep(2 * PERIOD)
            begin = time.monotonic()
            waits = [await first_token(session, url, length, seed=2 + number) for number in range(prompts)]
            spans = stream.gaps(begin, time.monotonic())
            await asyncio.sleep(2 * PERIOD)
        gaps = _seconds(spans)
        calm = _seconds([span for span in spans if load.peak(*span) <= CALM])
        if running.done():
            running.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return {
        "gap_alone_median_ms": round(1000 * median(quiet), 1),
        "gap_median_ms": round(1000 * median(gaps), 1),
        "gap_p99_ms": _p99(gaps),
        "gap_worst_ms": round(1000 * max(gaps), 1),
        "gaps": len(gaps),
        "calm_gap_p99_ms": _p99(calm),
        "calm_gaps": len(calm),
        "cores_of_others": round(mean(load.cores), 2),
        "prompt_alone_s": round(alone, 2),
        "prompt_beside_s": round(median(waits), 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stream_gaps", description=__doc__)
    parser.add_argument("--model", type=existing_checkpoint, help="checkpoint; none = random, 263M")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--stream-tokens", type=int, default=8000)
    parsed = parser.parse_args(arguments)
    model = parsed.model or random_350m(CHECKPOINT)
    record = {}
    for name, options in VARIANTS.items():
        fixed = ("--device", "cpu", "--dtype", parsed.dtype, "--max-model-len", "16384")
        with running_engine(model, *fixed, *options, threads=None) as url:
            record[name] = asyncio.run(
                measure(url, parsed.prompt_tokens, parsed.prompts, parsed.stream_tokens)
            )
        print(f"{name}: {json.dumps(record[name])}", file=sys.stderr, flush=True)
    rows = [
        f"| {what} | {' | '.join(f'{each[what]:g}' for each in record.values())} |"
        for what in record["default"]
    ]
    lines = ["", f"| {parsed.dtype}, a prompt of {parsed.prompt_tokens} tokens | {' | '.join(record)} |"]
    lines += [f"| --- |{' --- |' * len(record)}", *rows]
    write("stream-gaps", {"model": model.name, "found": record}, lines)


if __name__ == "__main__":
    main()
