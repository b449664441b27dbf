"""Cost of hostile clients for others: latency of /livez, memory, and latency of the next request.

Run as `python -m benchmarks.hostile_clients`; writes JSON and Markdown to benchmarks/results. The shipped
model behind a gateway, with the defaults; all is done at the API of the engine and again at the gateway.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from benchmarks.cache.record import write
from benchmarks.gateway_idle import resident_bytes
from benchmarks.http_cpu_processes import ROOT, started

sys.path.append(str(ROOT / "tests/support"))

from hostile_bodies import TEXT, HostileBody, hostile_bodies

AT_ONCE = 8
"""Clients that send hostile bodies at the same time, each every shape in turn."""
ROUNDS = 3
ABANDONED = 8
ABANDONED_BYTES = 3_000_000
EVERY = 0.02
"""Seconds between two questions for /livez."""
SMALL = {"prompt": "the key of the red door is", "max_tokens": 8}


def tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    pids = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            pids += tree(int(child))
    return pids


def resident_mib(pid: int) -> float:
    """Return the memory of a process and its descendants; shared pages count once for each."""
    return sum(map(resident_bytes, tree(pid))) / 2**20


class ServerUnderTest:
    """One place where clients come in."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url
        self.pid = pid
        self.host, self.port = urlsplit(url).hostname or "", urlsplit(url).port or 0

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Yield the milliseconds of each answer of /livez while the block runs, at least one.

        A thread sends the requests.
        """
        took: list[float] = []
        ended = threading.Event()

        def watch() -> None:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
            over = False
            while not over:
                begin = time.perf_counter()
                connection.request("GET", "/livez")
                answer = connection.getresponse()
                answer.read()
                assert answer.status == 200
                took.append(1e3 * (time.perf_counter() - begin))
                over = ended.wait(EVERY)
            connection.close()

        with ThreadPoolExecutor(1) as threads:
            watching = threads.submit(watch)
            try:
                yield took
            finally:
                ended.set()
                watching.result()

    async def small(self, session: aiohttp.ClientSession) -> float:
        """Return the seconds of a small request."""
        begin = time.perf_counter()
        async with session.post(f"{self.url}{TEXT}", json=SMALL) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
        return time.perf_counter() - begin

    async def hostile(self, session: aiohttp.ClientSession, bodies: Sequence[HostileBody]) -> dict[int, int]:
        """Send every shape from several clients at once and count the statuses."""
        statuses: dict[int, int] = {}

        async def client(first: int) -> None:
            for n in range(ROUNDS * len(bodies)):
                body = bodies[(first + n) % len(bodies)]
                headers = {"content-type": "application/json"}
                async with session.post(f"{self.url}{body.path}", data=body.body, headers=headers) as answer:
                    await answer.read()
                    statuses[answer.status] = statuses.get(answer.status, 0) + 1

        await asyncio.gather(*(client(n * len(bodies) // AT_ONCE) for n in range(AT_ONCE)))
        return statuses

    async def abandon(self) -> None:
        """Send long prompts whose clients leave before the answer."""
        data = json.dumps({"prompt": "word " * (ABANDONED_BYTES // 5), "max_tokens": 8}).encode()
        head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

        async def one() -> None:
            _, writer = await asyncio.open_connection(self.host, self.port)
            with contextlib.suppress(ConnectionError):
                writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                await writer.drain()
            writer.transport.abort()

        await asyncio.gather(*(one() for _ in range(ABANDONED)))


async def measure(door: ServerUnderTest, idle: int) -> dict[str, Any]:
    """Measure one door after another."""
    bodies = hostile_bodies()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        alone = statistics.median([await door.small(session) for _ in range(20)])
        with door.watched() as quiet:
            await asyncio.sleep(3)
        before = resident_mib(door.pid)
        begin = time.perf_counter()
        with door.watched() as hostile:
            statuses = await door.hostile(session, bodies)
        took, after = time.perf_counter() - begin, resident_mib(door.pid)
        with door.watched() as abandoned:
            await door.abandon()
            following = await door.small(session)
        held = resident_mib(door.pid)
        writers = [(await asyncio.open_connection(door.host, door.port))[1] for _ in range(idle)]
        with door.watched() as beside:
            await asyncio.sleep(3)
        with_idle = resident_mib(door.pid)
        for writer in writers:
            writer.transport.abort()
    return {
        "livez_alone_worst_ms": max(quiet),
        "hostile_bodies": sum(statuses.values()),
        "hostile_seconds": took,
        "hostile_statuses": {str(status): count for status, count in sorted(statuses.items())},
        "livez_beside_them_median_ms": statistics.median(hostile),
        "livez_beside_them_worst_ms": max(hostile),
        "memory_after_them_mib": after - before,
        "livez_beside_abandoned_prompts_worst_ms": max(abandoned),
        "small_request_alone_ms": 1e3 * alone,
        "small_request_after_abandoned_prompts_ms": 1e3 * following,
        "memory_after_abandoned_prompts_mib": held - before,
        "idle_connections": idle,
        "livez_beside_idle_connections_worst_ms": max(beside),
        "memory_of_idle_connections_mib": with_idle - held,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_clients", description=__doc__)
    parser.add_argument("--idle-connections", type=int, default=2000)
    idle: int = parser.parse_args(arguments).idle_connections
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the children's, too
    cli = [sys.executable, "-P", "-m", "mamba_cli"]
    serve = [*cli, "serve", "builtin://tiny-recall", "--port", "0", "--admin-port", "0"]
    record: dict[str, dict[str, Any]] = {}
    with started(serve, "mambaserve: ready", ROOT) as (engine, engine_url):
        relay = [*cli, "gateway", "--port", "0", "--backend", engine_url.removesuffix("/v1")]
        with started(relay, "ready at", ROOT) as (gateway, gateway_url):
            for name, url, pid in (("engine API", engine_url, engine), ("gateway", gateway_url, gateway)):
                record[name] = asyncio.run(measure(ServerUnderTest(url.removesuffix("/v1"), pid), idle))
    rows = [key for key, value in record["gateway"].items() if not isinstance(value, dict)]
    lines = [
        "",
        f"- {AT_ONCE} clients at once, 20 shapes of 1 MB each, {ROUNDS} times; {ABANDONED} prompts of 3 MB",
        "- memory: resident, of the process and all below it (the engine's, too)",
        "",
        f"| what | {' | '.join(record)} |",
        "| --- | ---: | ---: |",
        *(f"| {key.replace('_', ' ')} | {' | '.join(f'{each[key]:,.1f}' for each in record.values())} |"
          for key in rows),
    ]  # fmt: skip
    write("hostile-clients", {"found": record}, lines)


if __name__ == "__main__":
    main()
