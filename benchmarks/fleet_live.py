"""The fleet simulator beside the live product: engines of the shipped model behind a gateway, real processes.

Requests that are alone are measured first, and what they take is all that the simulator is told; then a
generated trace is played to both. Compared are TTFT, the share of prompt tokens that was resumed, and
throughput. Run as `python -m benchmarks.fleet_live [--minutes 20]`, on a machine that does nothing else: of
moments in which others took much of it no times are compared, on either side.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Awaitable, Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
from benchmarks.cache.block_trace import generated
from benchmarks.cache.record import RESULTS, write
from benchmarks.fleet.calibration import WIDE, Calibration, FleetFit
from benchmarks.http_cpu_processes import end_children_on_sigterm
from benchmarks.other_load import PERIOD, OtherLoad, cpu_seconds, tree
from benchmarks.routing_processes import Fleet, fleet

from mamba_cli.bench.client import LoadClient
from mamba_cli.bench.prompts import LoadPrompt
from mamba_cli.bench.samples import Sample
from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine_group import FixedSize
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.prompt_blocks import BLOCK as TRACE_BLOCK
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, TraceWorkload

BLOCK = 48
"""Tokens that a block of the trace becomes: those of a chunk on a CPU, where checkpoints may lie."""
MODEL = "tiny-recall"
NEW = (48, 192, 384, 768)
"""Tokens of new prompts."""
MORE = (48, 144)
"""Tokens behind a prompt that was asked before."""
OUTPUTS = 24
IDLE_SECONDS = 3.0
LEAST_USED = 0.01
QUIET = 0.25
"""Cores that others may take."""
LEAST_QUIET = 0.3
"""Share of the requests that must be left."""
TARGET = 0.15


def trace_of(seconds: float, rate: float, seed: int) -> RequestStream:
    """Return a trace of shared documents and growing conversations, in the model's size; Poisson arrivals."""
    rng = Random(f"live {seed}")
    at, arrivals = 0.0, []
    for each in generated(round(seconds * rate), seed, documents=12, depth=(2, 10)):
        at += rng.expovariate(rate)
        tokens = max(1, round(each.input_tokens * BLOCK / TRACE_BLOCK))
        arrivals.append(Arrival(at, tokens, max(2, each.output_tokens // 8), each.block_ids))
    return RequestStream(TraceWorkload("generated", BLOCK, arrivals), True)


def tokens_of(arrival: Arrival) -> list[int]:
    """Return a prompt for a vocabulary that is too small to give each block its own tokens."""
    ids = [token for block in arrival.block_ids for token in _block(block)]
    return ids[: arrival.input_tokens]


def _block(block: int) -> list[int]:
    rng = Random(block)
    return [rng.randrange(5, 250) for _ in range(BLOCK)]


async def calibrate(running: Fleet, rounds: int, pause: float, seed: int) -> Calibration:
    """Send new prompts through the gateway, then each with more text appended, in any order, one at a time.

    Pauses of `pause` seconds on average separate them: processes that slept take longer than busy ones.
    """
    rng = Random(f"calibration {seed}")
    alone, together = list[Sample](), list[Sample]()
    own, others = tree(), OtherLoad()

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(5, 250) for _ in range(count))

    async with aiohttp.ClientSession() as session:
        door = LoadClient(session, running.doors[0], MODEL)
        direct = LoadClient(session, running.engines[0], MODEL)

        async def ask(prompts: Sequence[tuple[int, ...]]) -> None:
            for each in rng.sample(prompts, len(prompts)):
                await asyncio.sleep(rng.expovariate(1 / pause))
                alone.append(await door.send(LoadPrompt(each, OUTPUTS, 0.0), 0.0))

        async def used(work: Awaitable[None]) -> tuple[float, float]:
            begun, before = time.monotonic(), cpu_seconds(own)
            await work
            return cpu_seconds(own) - before, time.monotonic() - begun

        with others.watching():
            resting, rest = await used(asyncio.sleep(IDLE_SECONDS))
            busy = 0.0
            for _ in range(rounds):
                new = [tokens(length) for length in NEW]
                for prompts in (new, [prompt + tokens(more) for prompt in new for more in MORE]):
                    samples, passed = await used(ask(prompts))
                    busy += samples - passed * resting / rest
                wide = [LoadPrompt(tokens(NEW[0]), 64, 0.0) for _ in range(WIDE)]
                together += await asyncio.gather(*(direct.send(each, 0.0) for each in wide))
            await asyncio.sleep(2 * PERIOD)
    busy_seconds = sum(each.e2e for each in alone)
    cores = len(os.sched_getaffinity(0)) - resting / rest
    return Calibration(undisturbed(alone, others), together, cores, max(LEAST_USED, busy / busy_seconds))


def undisturbed(samples: Sequence[Sample], others: OtherLoad, start: float = 0.0) -> list[Sample]:
    """Select the samples whose first token came before others took `QUIET` cores; all if few remain.

    `start`: of the samples' times by the monotonic clock. The selection depends on the load of others only,
    not on the measured times.
    """
    kept = [each for each in samples if _calm(each, others, start)]
    return kept if len(kept) >= LEAST_QUIET * len(samples) else list(samples)


def _calm(sample: Sample, others: OtherLoad, start: float) -> bool:
    begin = start + sample.sent
    return sample.ttft is not None and others.peak(begin, begin + sample.ttft) <= QUIET


async def play(door: str, stream: RequestStream) -> tuple[list[Sample], OtherLoad, float]:
    """Send each request at its second; return also the other load of the cores, and the start."""
    connector = aiohttp.TCPConnector(limit=0)
    prompts = [LoadPrompt(tuple(tokens_of(a)), a.output_tokens, a.at) for a in stream.workload.arrivals]
    others = OtherLoad()
    async with aiohttp.ClientSession(connector=connector) as session:
        client = LoadClient(session, door, MODEL)
        with others.watching():
            await asyncio.sleep(2 * PERIOD)
            start = time.monotonic()

            async def one(prompt: LoadPrompt) -> Sample:
                await asyncio.sleep(start + (prompt.at or 0.0) - time.monotonic())
                return await client.send(prompt, start)

            samples = list(await asyncio.gather(*map(one, prompts)))
            await asyncio.sleep(2 * PERIOD)
    return samples, others, start


def figures(
    first: Sequence[float], prompts: int, resumed: int, outputs: int, seconds: float
) -> dict[str, float]:
    """Return the figures to compare, of the live or of the simulated fleet."""
    ordered = sorted(first)
    return {
        "ttft_p50": round(ordered[len(ordered) // 2], 4),
        "ttft_p95": round(ordered[int(0.95 * len(ordered))], 4),
        "token_hit_rate": round(resumed / max(1, prompts), 4),
        "output_tokens_per_second": round(outputs / seconds, 2),
    }


def of_live(samples: Sequence[Sample], timed: Sequence[Sample] | None = None) -> dict[str, float]:
    """Return the figures of successful requests; latencies of those that are `timed`, by default of all."""
    well = [each for each in samples if each.error is None and each.ttft is not None]
    return figures(
        [each.ttft for each in timed or well if each.error is None and each.ttft is not None],
        sum(each.prompt_tokens for each in well),
        sum(each.cached_tokens for each in well),
        sum(each.output_tokens for each in well),
        max(each.end for each in well) - min(each.sent for each in well),
    )


def simulated(
    stream: RequestStream, fit: FleetFit, engines: int, seed: int, counted: Collection[int] | None = None
) -> dict[str, float]:
    """Return the figures of the same requests in a simulated fleet.

    `counted`: numbers of the requests whose latencies count.
    """
    around = FleetEnvironment(least=engines, most=engines, initial=engines, machine=fit.machine)
    run = Simulation(stream, fit.profile, SimulatedGateway, FixedSize(engines), Slo(), around, seed)
    run.run()
    done = [each for each in run.requests if each.first_token_at is not None and each.ended_at is not None]
    return figures(
        [
            each.first_token_at - each.arrived_at
            for each in done
            if each.first_token_at and (counted is None or each.number in counted)
        ],
        sum(each.prompt_tokens for each in done),
        sum(each.resumed for each in done),
        sum(each.outputs for each in done),
        max(each.ended_at for each in done if each.ended_at is not None)
        - min(each.arrived_at for each in done),
    )


def differences(live: dict[str, float], simulated: dict[str, float]) -> dict[str, float]:
    """Return the difference of each simulated figure, relative to the live one."""
    return {name: round(simulated[name] / live[name] - 1, 4) if live[name] else 0.0 for name in live}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second on average")
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--arena-bytes", type=int, default=64 << 20, help="of each engine")
    parser.add_argument("--rounds", type=int, default=20, help="of each calibration, of 3 s at 4 a second")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--name", default="fleet-live", help="of the files")
    parser.add_argument("--keep", type=Path, help="file for all samples, as JSON")
    options = parser.parse_args(arguments)
    end_children_on_sigterm()
    stream = trace_of(60 * options.minutes, options.rate, options.seed)
    pause = 1 / options.rate
    with fleet("resumable", options.engines, 1, options.arena_bytes) as running:
        asyncio.run(calibrate(running, 2, 0.1, -1))
        before = asyncio.run(calibrate(running, options.rounds, pause, 0))
        running.flush()
        samples, others, start = asyncio.run(play(running.doors[0], stream))
        after = asyncio.run(calibrate(running, options.rounds, pause, 1))
    if options.keep is not None:
        options.keep.write_bytes(msgspec.json.encode({"live": samples, "before": before, "after": after}))
    slabs = options.arena_bytes // (64 << 10)
    fit, later = before.fit(slabs), after.fit(slabs)
    timed = undisturbed(samples, others, start)
    calm = sum(_calm(each, others, start) for each in samples)
    quiet = set(map(id, timed))
    kept = {number for number, each in enumerate(samples) if id(each) in quiet}
    live, whole = of_live(samples, timed), of_live(samples)
    simulated_figures, drift = (
        simulated(stream, each, options.engines, options.seed, kept) for each in (fit, later)
    )
    apart = differences(live, simulated_figures)
    failed = sum(each.error is not None for each in samples)
    asks = f"{options.minutes:g} minutes at {options.rate:g} a second, seed {options.seed}"
    lines = [
        f"- {options.engines} engines of the shipped model, one thread each, behind one gateway",
        f"- {asks}: {failed} of {len(samples)} requests failed",
        "- fitted to requests that were alone, before: " + _fit_text(fit),
        "- and after, which shows what the machine itself changed: " + _fit_text(later),
        f"- others took more than {QUIET} cores in {len(samples) - calm} of them; times are of {len(timed)}",
        "",
        "| figure | live | simulated | difference | within 15 % | with the fit of after | live, all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {name} | {live[name]} | {simulated_figures[name]} | {apart[name]:+.1%} | "
            f"{'yes' if abs(apart[name]) <= TARGET else 'no'} | {drift[name]} | {whole[name]} |"
            for name in live
        ),
        "",
    ]
    document: dict[str, Any] = {
        "minutes": options.minutes, "rate": options.rate, "seed": options.seed, "requests": len(samples),
        "failed": failed, "calm": calm, "timed": len(timed), "live_all": whole,
        "fit": fit.numbers(), "fit_after": later.numbers(), "live": live,
        "simulated": simulated_figures, "difference": apart, "simulated_with_fit_of_after": drift,
    }  # fmt: skip
    write(options.name, document, lines, options.out)


def _fit_text(fit: FleetFit) -> str:
    return ", ".join(f"{name} {value}" for name, value in fit.numbers().items())


if __name__ == "__main__":
    main()
