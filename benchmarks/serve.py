"""Serving: our engine under a closed-loop load, and transformers `generate` on the same checkpoint.

Run as `python -m benchmarks.serve`; writes JSON and a Markdown summary to benchmarks/results.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.baseline import Baseline
from benchmarks.checkpoint import existing_checkpoint, random_350m
from benchmarks.engine import running_engine
from benchmarks.machine import facts
from benchmarks.summary import markdown

from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.load_loops import closed_loop
from mamba_cli.bench.prompts import LengthRange, LoadPrompt, random_prompts
from mamba_cli.bench.samples import LatencyLimits, Sample, report

ROOT = Path(__file__).parent
CACHE = ROOT.parent / ".work" / "benchmarks"
TINY = ROOT.parent / "server" / "mamba_server" / "builtin" / "tiny-recall"


@dataclass(frozen=True, slots=True)
class ServeLoad:
    """Requests at each concurrency; all prompts are different, so nothing can be resumed."""

    input_tokens: int
    output_tokens: int
    rounds: int
    """Requests of each level: so many times its concurrency."""
    levels: tuple[int, ...] = (1, 8, 32)

    def prompts(self, level: int, turn: int = 0) -> list[LoadPrompt]:
        """Return the prompts of one level; those of another turn share nothing with them."""
        count = max(4, self.rounds * level)
        lengths = LengthRange(self.input_tokens), LengthRange(self.output_tokens)
        return list(random_prompts(count, *lengths, 256, seed=level + 1000 * turn))


async def engine_samples(url: str, prompts: Sequence[LoadPrompt], level: int) -> list[Sample]:
    """Measure the engine."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        client = LoadClient(session, url, await _model_name(session, url), timeout=3600)
        return await closed_loop(prompts, client.send, level, asyncio.Event(), lambda _: None)


async def engine_outputs(url: str, prompt: LoadPrompt) -> list[int]:
    """Return the greedy tokens of one prompt, never the end of the answer, like `Baseline.outputs`."""
    async with aiohttp.ClientSession() as session:
        body = {
            "model": await _model_name(session, url),
            "prompt": list(prompt.token_ids),
            "max_tokens": prompt.output_tokens,
            "temperature": 0,
            "min_tokens": prompt.output_tokens,
            "return_token_ids": True,
        }
        async with session.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            return list((await response.json())["choices"][0]["token_ids"])


async def _model_name(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


def same_tokens(one: Sequence[int], two: Sequence[int]) -> int:
    """Count the equal tokens before the first difference."""
    pairs = zip(one, two, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


def measure(
    model: Path, load: ServeLoad, device: str, dtype: str, threads: int, options: Sequence[str]
) -> dict[str, Any]:
    """Measure both systems on one checkpoint, one after the other, never at the same time."""
    levels = {level: load.prompts(level) for level in load.levels}
    probe = levels[load.levels[0]][0]
    record: dict[str, Any] = {"model": model.name, "levels": []}
    ours: dict[int, list[Sample]] = {}
    engine_options = ("--dtype", dtype, "--device", device, *options)
    with running_engine(model, *engine_options, threads=threads) as url:
        tokens = asyncio.run(engine_outputs(url, probe))  # warms up, too
        asyncio.run(engine_samples(url, load.prompts(7)[:8], 8))
        for level, prompts in levels.items():
            ours[level] = asyncio.run(engine_samples(url, prompts, level))
            say(model, "engine", level, ours[level])
    baseline = Baseline(model, device, dtype, threads)
    expected = baseline.outputs(probe)
    record["greedy_tokens_equal"] = f"{same_tokens(tokens, expected)} of {len(expected)}"
    for level, prompts in levels.items():
        theirs = baseline.run(prompts, level)
        say(model, "transformers", level, theirs)
        reports = {
            "engine": report(ours[level], LatencyLimits()),
            "transformers": report(theirs, LatencyLimits()),
        }
        record["levels"].append({"concurrency": level, **reports})
    return record


def say(model: Path, who: str, level: int, samples: list[Sample]) -> None:
    """Print one line of progress."""
    rate = report(samples, LatencyLimits())["rates"]["output_tokens_per_second"]
    failed = {sample.error for sample in samples if sample.error}
    print(f"{model.name}: {who} at {level}: {rate} tokens/s {failed or ''}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print the summary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument(
        "--model",
        type=existing_checkpoint,
        action="append",
        help="checkpoint (repeatable); none = both standard ones",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default=None)
    parser.add_argument("--dtype", default=None, help="float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=None, help="none = all cores")
    parser.add_argument("--out", type=Path, default=ROOT / "results")
    parser.add_argument("engine_options", nargs="*", help="options of `mambaserve serve`, after --")
    options = parser.parse_args(arguments)
    import os

    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = options.dtype or ("bfloat16" if device == "cuda" else "float32")
    threads = options.threads or os.cpu_count() or 1
    models = options.model or [random_350m(CACHE / "random-350m"), *([TINY] if TINY.exists() else [])]
    load = ServeLoad(options.input_tokens, options.output_tokens, options.rounds)
    begin = time.monotonic()
    record = {
        "benchmark": "serve",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts(),
        "device": device,
        "dtype": dtype,
        "threads": threads,
        "load": {
            "input_tokens": load.input_tokens,
            "output_tokens": load.output_tokens,
            "rounds": load.rounds,
        },
        "engine_options": options.engine_options,
        "models": [measure(m, load, device, dtype, threads, options.engine_options) for m in models],
    }
    record["took_seconds"] = round(time.monotonic() - begin, 1)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.now(UTC):%Y-%m-%d}-serve"
    (options.out / f"{stem}.json").write_text(json.dumps(record, indent=2) + "\n")
    (options.out / f"{stem}.md").write_text(markdown(record))
    print(markdown(record))


if __name__ == "__main__":
    main()
