"""Memory and CPU time that a gateway needs for each idle stream.

Run as `python -m benchmarks.gateway_idle [--streams N]`; writes JSON and Markdown to benchmarks/results. The
gateway, the upstream and the client are processes of their own; of descriptors the gateway takes 2 N.
"""

import argparse
import asyncio
import json
import re
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cache.record import write
from benchmarks.http_cpu import cpu_seconds
from benchmarks.http_cpu_client import PROMPT
from benchmarks.http_cpu_processes import ROOT, gateway

OTHERS = 200
"""Descriptors that a process needs for all else."""
AT_ONCE = 100
"""Streams that are opened at the same time."""
SETTLE_SECONDS = 3.0
WATCHED_SECONDS = 30.0
"""Long enough for the gateway to ask after silent engines."""


def resident_bytes(pid: int) -> int:
    """Return the memory of a process."""
    match = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert match is not None
    return 1024 * int(match[1])


async def _open(port: int, places: asyncio.Semaphore) -> asyncio.StreamWriter:
    data = json.dumps({**PROMPT, "stream": True, "hold": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    async with places:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\n\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not answered: {answer!r}")
        return writer


async def measure(pid: int, port: int, streams: int) -> dict[str, float]:
    """Open so many, look on, close."""
    places = asyncio.Semaphore(AT_ONCE)
    warm = [await _open(port, places) for _ in range(10)]
    before, begun = resident_bytes(pid), cpu_seconds(pid)
    writers = await asyncio.gather(*(_open(port, places) for _ in range(streams)))
    opened = cpu_seconds(pid)
    await asyncio.sleep(SETTLE_SECONDS)
    held, idle, at = resident_bytes(pid), cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(WATCHED_SECONDS)
    watched = time.monotonic() - at
    record = {
        "streams": streams,
        "before_mib": round(before / 2**20, 1),
        "with_streams_mib": round(held / 2**20, 1),
        "kib_per_stream": round((held - before) / streams / 1024, 2),
        "open_micros_per_stream": round(1e6 * (opened - begun) / streams, 1),
        "idle_cpu_share": round((cpu_seconds(pid) - idle) / watched, 3),
    }
    for writer in (*warm, *writers):
        writer.transport.abort()
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway_idle", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    streams: int = parser.parse_args(arguments).streams
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 2 * streams + OTHERS > most:
        parser.error(
            f"{streams} streams need {2 * streams + OTHERS} descriptors, and {most} are allowed: "
            f"raise `ulimit -n`, or ask for --streams {(most - OTHERS) // 2}"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the children's, too
    room = str(streams + OTHERS)
    with gateway(ROOT, "--max-connections", room, "--max-in-flight", room) as running:
        record = asyncio.run(measure(running.pid, running.port, streams))
    lines = [
        "",
        "| what | value |",
        "| --- | --- |",
        *(f"| {name} | {value:g} |" for name, value in record.items()),
    ]
    write("gateway-idle-streams", {"found": record}, lines)


if __name__ == "__main__":
    main()
