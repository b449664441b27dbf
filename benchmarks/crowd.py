"""Answers that probes and honest clients get beside thousands of idle, slow and hostile connections at once.

Run as `python -m benchmarks.crowd`; writes JSON and Markdown to benchmarks/results. The shipped model behind
a gateway, with the defaults; the crowd comes to the API of the engine, and then to the gateway.
"""

import argparse
import asyncio
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.cache.record import write
from benchmarks.http_cpu_processes import ROOT, started

sys.path.append(str(ROOT / "tests/support"))

from crowd import PROBES, TEXT, Crowd, ask, idle, senseless, slow_bodies, slow_heads, unread_offers

ROUNDS = 20


async def timed(url: str, path: str) -> tuple[int, float]:
    """Status and milliseconds of one honest request."""
    begin = time.perf_counter()
    status = await ask(url, path)
    return status, 1e3 * (time.perf_counter() - begin)


async def measure(url: str, idlers: int, slow: int, hostile: int) -> dict[str, Any]:
    """Let the crowd come, and ask beside it."""
    alone = [await timed(url, path) for _ in range(ROUNDS) for path in PROBES]
    probes: list[tuple[int, float]] = []
    honest: list[tuple[int, float]] = []
    over = asyncio.Event()

    async def watch(paths: Sequence[str], into: list[tuple[int, float]]) -> None:
        while not over.is_set():
            into.extend([await timed(url, path) for path in paths])
            await asyncio.sleep(0.05)

    async with Crowd(url) as crowd:
        watching = [asyncio.create_task(watch(PROBES, probes)), asyncio.create_task(watch((TEXT,), honest))]
        await crowd.come(idle, idlers)
        await crowd.come(slow_heads, slow // 2)
        await crowd.come(slow_bodies, slow - slow // 2)
        await asyncio.gather(crowd.come(senseless, hostile // 2), crowd.come(unread_offers, hostile // 2))
        await asyncio.sleep(3)
        over.set()
        await asyncio.gather(*watching)
    return {
        "probes": len(probes),
        "probes_not_200": sum(status != 200 for status, _ in probes),
        "probe_alone_worst_ms": max(took for _, took in alone),
        "probe_median_ms": statistics.median(took for _, took in probes),
        "probe_worst_ms": max(took for _, took in probes),
        "honest_requests": len(honest),
        "honest_not_200": sum(status != 200 for status, _ in honest),
        "honest_worst_ms": max(took for _, took in honest),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crowd", description=__doc__)
    parser.add_argument("--idle", type=int, default=4096)
    parser.add_argument("--slow", type=int, default=2000)
    parser.add_argument("--hostile", type=int, default=500)
    given = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cli = [sys.executable, "-P", "-m", "mamba_cli"]
    serve = [*cli, "serve", "builtin://tiny-recall", "--port", "0", "--admin-port", "0"]
    found: dict[str, dict[str, Any]] = {}
    with started(serve, "mambaserve: ready", ROOT) as (_, engine_url):
        relay = [*cli, "gateway", "--port", "0", "--backend", engine_url.removesuffix("/v1")]
        with started(relay, "ready at", ROOT) as (_, gateway_url):
            for name, url in (("engine API", engine_url), ("gateway", gateway_url)):
                numbers = measure(url.removesuffix("/v1"), given.idle, given.slow, given.hostile)
                found[name] = asyncio.run(numbers)
    lines = [
        "",
        f"- {given.idle} idle, {given.slow} slow and {given.hostile} hostile connections at once",
        "",
        f"| what | {' | '.join(found)} |",
        "| --- | ---: | ---: |",
        *(f"| {key.replace('_', ' ')} | {' | '.join(f'{each[key]:,.1f}' for each in found.values())} |"
          for key in found["gateway"]),
    ]  # fmt: skip
    write("crowd", {"found": found}, lines)


if __name__ == "__main__":
    main()
