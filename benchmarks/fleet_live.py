"""The fleet simulator beside the live product: engines of the shipped model behind a gateway, real processes.

Step times are fitted on the same fleet before and after, then a generated trace is played to both. Compared
are TTFT, the share of prompt tokens that was resumed, and throughput. Run as `python -m benchmarks.fleet_live
[--minutes 20]`. Engines share the machine's cores, which the simulator knows nothing of: keep the rate low.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import aiohttp
import numpy as np
from benchmarks.cache.block_trace import generated
from benchmarks.cache.record import RESULTS, write
from benchmarks.http_cpu_processes import end_children_on_sigterm
from benchmarks.routing_live import fleet

from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.prompts import Prompt
from mamba_cli.bench.samples import Sample
from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.fixed_size import FixedSize
from mamba_cli.fleet.gateway import Gateway
from mamba_cli.fleet.prompt_blocks import BLOCK as TRACE_BLOCK
from mamba_cli.fleet.simulation import Conditions, Simulation
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import Asked, Workload

BLOCK = 48
"""Tokens that a block of the trace becomes: those of a chunk on a CPU, where checkpoints may lie."""
LENGTHS = (48, 480, 960, 1920)
WIDE = 8
"""Sequences that decode at once while their cost is measured."""
LEAST = 1e-6
TARGET = 0.15


@dataclass(frozen=True, slots=True)
class Fit:
    """Of the engines' times; `overhead`: seconds of a TTFT outside the engine's steps."""

    profile: EngineProfile
    overhead: float


@dataclass(slots=True)
class Calibration:
    """Samples of an idle fleet: alone by length of the prompt, and `WIDE` at once."""

    alone: dict[int, list[Sample]]
    together: list[Sample]

    def fit(self, slabs: int) -> Fit:
        """By medians, so that a moment in which something else had the cores decides nothing."""
        first = [median(s.ttft for s in self.alone[n] if s.ttft is not None) for n in LENGTHS]
        slope, intercept = np.polyfit(LENGTHS, first, 1)
        one = median(s.tpot for n in LENGTHS for s in self.alone[n] if s.tpot is not None)
        many = median(s.tpot for s in self.together if s.tpot is not None)
        sequence = max(LEAST, (many - one) / (WIDE - 1))
        step = max(LEAST, one - sequence)
        profile = EngineProfile(
            name="live", origin="fitted to the same fleet",
            prefill_tokens_per_second=1 / max(float(slope), LEAST), step_seconds=step,
            sequence_seconds=sequence, chunk_tokens=2048, max_running=32, slabs=slabs,
            tokens_per_state=64, strategy="ExtraBufferLazy",
        )  # fmt: skip
        return Fit(profile, max(0.0, float(intercept) - step))


def trace_of(seconds: float, rate: float, seed: int) -> Asked:
    """Shared documents and conversations that go on, in the size of the model; Poisson arrivals."""
    rng = Random(f"live {seed}")
    at, made = 0.0, []
    for each in generated(round(seconds * rate), seed, documents=12, depth=(2, 10)):
        at += rng.expovariate(rate)
        tokens = max(1, round(each.input_tokens * BLOCK / TRACE_BLOCK))
        made.append(Arrival(at, tokens, max(2, each.output_tokens // 8), each.block_ids))
    return Asked(Workload("generated", BLOCK, made), True)


def tokens_of(arrival: Arrival) -> list[int]:
    """The prompt for a vocabulary that is too small to give each block tokens of its own."""
    ids = [token for block in arrival.block_ids for token in _block(block)]
    return ids[: arrival.input_tokens]


def _block(block: int) -> list[int]:
    rng = Random(block)
    return [rng.randrange(5, 250) for _ in range(BLOCK)]


async def calibrate(door: str, engine: str, rounds: int, pause: float, seed: int) -> Calibration:
    """Prompts that nobody asked before; alone through the gateway, together at one engine.

    With pauses of so many seconds on average: processes that slept take longer than those that just ran.
    """
    rng = Random(f"calibration {seed}")

    def prompt(length: int, outputs: int) -> Prompt:
        return Prompt([rng.randrange(5, 250) for _ in range(length)], outputs, 0.0)

    found = Calibration({length: [] for length in LENGTHS}, [])
    async with aiohttp.ClientSession() as session:
        alone, direct = LoadClient(session, door, "tiny-recall"), LoadClient(session, engine, "tiny-recall")
        for _ in range(rounds):
            for length in LENGTHS:
                await asyncio.sleep(rng.expovariate(1 / pause))
                found.alone[length].append(await alone.send(prompt(length, 24), time.monotonic()))
            wide = (direct.send(prompt(48, 64), time.monotonic()) for _ in range(WIDE))
            found.together += await asyncio.gather(*wide)
    return found


async def play(door: str, asked: Asked) -> list[Sample]:
    """Each request at its second, whatever the others do."""
    connector = aiohttp.TCPConnector(limit=0)
    prompts = [Prompt(tokens_of(a), a.output_tokens, a.at) for a in asked.workload.arrivals]
    async with aiohttp.ClientSession(connector=connector) as session:
        client = LoadClient(session, door, "tiny-recall")
        start = time.monotonic()

        async def one(prompt: Prompt) -> Sample:
            await asyncio.sleep(start + (prompt.at or 0.0) - time.monotonic())
            return await client.send(prompt, start)

        return list(await asyncio.gather(*map(one, prompts)))


def figures(
    first: Sequence[float], prompts: int, resumed: int, outputs: int, seconds: float
) -> dict[str, float]:
    """What is compared, of one of the two."""
    ordered = sorted(first)
    return {
        "ttft_p50": round(ordered[len(ordered) // 2], 4),
        "ttft_p95": round(ordered[int(0.95 * len(ordered))], 4),
        "token_hit_rate": round(resumed / max(1, prompts), 4),
        "output_tokens_per_second": round(outputs / seconds, 2),
    }


def of_live(samples: Sequence[Sample]) -> dict[str, float]:
    """Of requests that ended well."""
    well = [each for each in samples if each.error is None and each.ttft is not None]
    return figures(
        [each.ttft for each in well if each.ttft is not None],
        sum(each.prompt_tokens for each in well),
        sum(each.cached_tokens for each in well),
        sum(each.output_tokens for each in well),
        max(each.end for each in well) - min(each.sent for each in well),
    )


def simulated(asked: Asked, fit: Fit, engines: int, seed: int) -> dict[str, float]:
    """The same requests to a simulated fleet of such engines."""
    around = Conditions(least=engines, most=engines, initial=engines)
    run = Simulation(asked, fit.profile, Gateway, FixedSize(engines), Slo(), around, seed)
    run.run()
    done = [each for each in run.requests if each.first is not None and each.ended is not None]
    return figures(
        [each.first - each.at + fit.overhead for each in done if each.first is not None],
        sum(each.prompt_tokens for each in done),
        sum(each.resumed for each in done),
        sum(each.outputs for each in done),
        max(each.ended for each in done if each.ended is not None) - min(each.at for each in done),
    )


def differences(live: dict[str, float], simulated: dict[str, float]) -> dict[str, float]:
    """Of the simulated figure, relative to the live one."""
    return {name: round(simulated[name] / live[name] - 1, 4) if live[name] else 0.0 for name in live}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second on average")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--arena-bytes", type=int, default=64 << 20, help="of each engine")
    parser.add_argument("--rounds", type=int, default=10, help="of each calibration")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    end_children_on_sigterm()
    asked = trace_of(60 * given.minutes, given.rate, given.seed)
    with fleet("resumable", given.engines, 1, given.arena_bytes) as running:
        door, engine = running.doors[0], running.engines[0]
        asyncio.run(calibrate(door, engine, 2, 0.1, -1))
        before = asyncio.run(calibrate(door, engine, given.rounds, 1 / given.rate, 0))
        running.flush()
        samples = asyncio.run(play(door, asked))
        after = asyncio.run(calibrate(door, engine, given.rounds, 1 / given.rate, 1))
    slabs = given.arena_bytes // (64 << 10)
    both = Calibration(
        {n: before.alone[n] + after.alone[n] for n in LENGTHS}, before.together + after.together
    )
    fit = both.fit(slabs)
    live = of_live(samples)
    # Of each of the two calibrations alone: what the machine's changing load makes of the same fit.
    ranges = [simulated(asked, each.fit(slabs), given.engines, given.seed) for each in (before, after)]
    found = simulated(asked, fit, given.engines, given.seed)
    apart = differences(live, found)
    failed = sum(each.error is not None for each in samples)
    own = numbers(fit)
    lines = [
        f"- {given.engines} engines of the shipped model, one thread each, behind one gateway",
        f"- {given.minutes:g} minutes, {len(samples)} requests, {failed} failed",
        "- fitted on the same fleet before and after: " + ", ".join(f"{k} {v}" for k, v in own.items()),
        "",
        "| figure | live | simulated | difference | within 15 % | with the fit of before, of after |",
        "| --- | --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {live[name]} | {found[name]} | {apart[name]:+.1%} | "
            f"{'yes' if abs(apart[name]) <= TARGET else 'no'} | {ranges[0][name]}, {ranges[1][name]} |"
            for name in live
        ),
        "",
    ]
    document: dict[str, Any] = {
        "minutes": given.minutes, "rate": given.rate, "requests": len(samples), "failed": failed,
        "fit": own, "live": live, "simulated": found, "difference": apart,
        "simulated_with_fit_of": {"before": ranges[0], "after": ranges[1]},
    }  # fmt: skip
    write("fleet-live", document, lines, given.out)


def numbers(fit: Fit) -> dict[str, float]:
    """The fitted numbers, for people."""
    profile = fit.profile
    return {
        "prefill_tokens_per_second": round(profile.prefill_tokens_per_second),
        "step_seconds": round(profile.step_seconds, 5),
        "sequence_seconds": round(profile.sequence_seconds, 6),
        "overhead_seconds": round(fit.overhead, 5),
    }


if __name__ == "__main__":
    main()
