"""The client of `http_cpu`: a fixed number of requests, over as many connections as wanted."""

import asyncio
import json
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any

TOKENS = 64
PROMPT = {"model": "m", "prompt": "The quick brown fox jumps over the lazy dog.", "max_tokens": TOKENS}


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One way to ask."""

    name: str
    body: dict[str, Any]
    requests: int
    """In one round."""
    connections: int
    """Over which they are sent, one after the other on each: few for streams, since deltas are joined where
    the process does not keep up, and fewer events cost less."""
    whole: bool = True
    """True if the answer comes in one piece, not as a stream."""


def kinds(connections: list[int]) -> tuple[RequestKind, ...]:
    """Measure whole answers over each number of connections, and streams."""
    whole = [
        RequestKind(f"whole answer, {each} connections", PROMPT, max(400, 10 * each), each)
        for each in connections
    ]
    stream = {**PROMPT, "stream": True, "cache_salt": "stream"}
    return (*whole, RequestKind(f"stream of {TOKENS} tokens", stream, 48, 4, whole=False))


def _message(port: int, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


async def ask(port: int, kind: RequestKind) -> int:
    """Send the requests of one round; the number of events that came back."""
    message = _message(port, kind.body)
    left, events = kind.requests, 0

    async def connection() -> None:
        nonlocal left, events
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left:
            left -= 1
            writer.write(message)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            if not answer.startswith(b"http/1.1 200"):
                raise RuntimeError(f"not answered: {answer!r}")
            length = re.search(rb"content-length: (\d+)", answer)
            if length is not None:
                await reader.readexactly(int(length[1]))
            else:
                events += (await reader.readuntil(b"\r\n0\r\n\r\n")).count(b"data: {")
        writer.close()
        await writer.wait_closed()

    await asyncio.gather(*(connection() for _ in range(kind.connections)))
    return events


async def latency(port: int, requests: int) -> float:
    """Return the median seconds of a small request on one connection, one after the other."""
    message, seconds = _message(port, PROMPT), []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(requests):
        begin = time.perf_counter()
        writer.write(message)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", answer.lower())
        if not answer.lower().startswith(b"http/1.1 200") or length is None:
            raise RuntimeError(f"not answered: {answer!r}")
        await reader.readexactly(int(length[1]))
        seconds.append(time.perf_counter() - begin)
    writer.close()
    await writer.wait_closed()
    return statistics.median(seconds)
