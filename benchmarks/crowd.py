"""Answers that probes and honest clients get beside thousands of idle, slow and hostile connections at once.

Run as `python -m benchmarks.crowd`; writes JSON and Markdown to benchmarks/results. The shipped model behind
a gateway, with the defaults; the crowd comes to the API of the engine, and then to the gateway. A process of
its own asks for probes, and asks a server without a crowd, too (`crowd_probes`).
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Any

from benchmarks.cache.record import write
from benchmarks.http_cpu_processes import ROOT, started

sys.path.append(str(ROOT / "tests/support"))

from crowd import PROBES, TEXT, Crowd, ask, idle, senseless, slow_bodies, slow_heads, unread_offers

ROUNDS = 20
PROBER = [sys.executable, "-P", "benchmarks/crowd_probes.py"]


async def timed(url: str, path: str) -> tuple[int, float]:
    """Return the status and milliseconds of one honest request."""
    begin = time.perf_counter()
    status = await ask(url, path)
    return status, 1e3 * (time.perf_counter() - begin)


async def measure(url: str, control: str, idlers: int, slow: int, hostile: int) -> dict[str, Any]:
    """Let the crowd come, and ask beside it."""
    alone = [await timed(url, path) for _ in range(ROUNDS) for path in PROBES]
    honest: list[tuple[int, float]] = []
    over = asyncio.Event()

    async def be_honest() -> None:
        while not over.is_set():
            honest.append(await timed(url, TEXT))
            await asyncio.sleep(0.05)

    watch = [*PROBER, "watch", url, control, *PROBES]
    prober = await asyncio.create_subprocess_exec(*watch, stdin=PIPE, stdout=PIPE, cwd=ROOT, limit=1 << 24)

    async with Crowd(url) as crowd:
        honestly = asyncio.create_task(be_honest())
        await crowd.come(idle, idlers)
        await crowd.come(slow_heads, slow // 2)
        await crowd.come(slow_bodies, slow - slow // 2)
        await asyncio.gather(crowd.come(senseless, hostile // 2), crowd.come(unread_offers, hostile // 2))
        await asyncio.sleep(3)
        over.set()
        await honestly
        seen = json.loads((await prober.communicate(b""))[0])
    probes, controls = seen["probes"], seen["controls"]
    return {
        "probes": len(probes),
        "probes_not_200": sum(status != 200 for status, _ in probes),
        "probe_alone_worst_ms": max(took for _, took in alone),
        "probe_median_ms": statistics.median(took for _, took in probes),
        "probe_worst_ms": max(took for _, took in probes),
        "probes_above_100_ms": sum(took > 100 for _, took in probes),
        "no_crowd_median_ms": statistics.median(took for _, took in controls),
        "no_crowd_worst_ms": max(took for _, took in controls),
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
    options = parser.parse_args(arguments)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    cli = [sys.executable, "-P", "-m", "mamba_cli"]
    serve = [*cli, "serve", "builtin://tiny-recall", "--port", "0", "--admin-port", "0"]
    record: dict[str, dict[str, Any]] = {}
    without_crowd = started([*PROBER, "answer"], "ready at", ROOT)
    with without_crowd as (_, control), started(serve, "mambaserve: ready", ROOT) as (_, engine_url):
        relay = [*cli, "gateway", "--port", "0", "--backend", engine_url.removesuffix("/v1")]
        with started(relay, "ready at", ROOT) as (_, gateway_url):
            for name, url in (("engine API", engine_url), ("gateway", gateway_url)):
                crowd = (options.idle, options.slow, options.hostile)
                record[name] = asyncio.run(measure(url.removesuffix("/v1"), control, *crowd))
    lines = [
        "",
        f"- {options.idle} idle, {options.slow} slow and {options.hostile} hostile connections at once",
        "",
        f"| what | {' | '.join(record)} |",
        "| --- | ---: | ---: |",
        *(f"| {key.replace('_', ' ')} | {' | '.join(f'{each[key]:,.1f}' for each in record.values())} |"
          for key in record["gateway"]),
    ]  # fmt: skip
    write("crowd", {"found": record}, lines)


if __name__ == "__main__":
    main()
