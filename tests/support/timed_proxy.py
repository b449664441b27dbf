"""A proxy that measures the streams which pass through it: the same requests as the client's own report.

Times are those of the wire between a load generator and a server, so a client sees each token a little later.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp
from aiohttp import web

from mamba_cli.bench.samples import LatencyLimits, Sample, report


@dataclass
class TimedProxy:
    """The address of a proxy, and the samples of the completions that passed through it."""

    url: str = ""
    samples: list[Sample] = field(default_factory=list)

    def report(self) -> dict[str, Any]:
        """Return the report of all completions so far, as `mambaserve bench` computes it, and forget them."""
        samples, self.samples = self.samples, []
        return report(samples, LatencyLimits())


@contextmanager
def timed_proxy(target: str) -> Iterator[TimedProxy]:
    """Run a proxy in front of the server `target`, in a thread of its own."""
    proxy, ready = TimedProxy(), threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(_serve(proxy, target, ready, stop),))
    thread.start()
    assert ready.wait(60)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _serve(proxy: TimedProxy, target: str, ready: threading.Event, stop: asyncio.Event) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            sent = time.monotonic()
            kind = {"Content-Type": request.headers.get("Content-Type", "application/json")}
            async with session.request(
                request.method, target + request.path_qs, data=body or None, headers=kind
            ) as answer:
                response = web.StreamResponse(status=answer.status)
                response.content_type = answer.content_type
                await response.prepare(request)
                times: list[float] = []
                usage: dict[str, int] = {}
                async for line in answer.content:
                    if _is_token(line, usage):
                        times.append(time.monotonic())
                    await response.write(line)
                if times:
                    proxy.samples.append(_sample(sent, times, usage))
                return response

        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        proxy.url = f"http://{host}:{port}"
        ready.set()
        await stop.wait()
        await runner.cleanup()


def _is_token(line: bytes, usage: dict[str, int]) -> bool:
    """Return whether an event has text; the newest usage is put into `usage`."""
    if not line.startswith(b"data: {"):
        return False
    event = json.loads(line[6:])
    usage.update({key: value for key, value in (event.get("usage") or {}).items() if isinstance(value, int)})
    return any(choice.get("text") for choice in event["choices"])


def _sample(sent: float, times: list[float], usage: dict[str, int]) -> Sample:
    gaps = tuple(later - earlier for earlier, later in pairwise(times))
    return Sample(
        sent, times[-1], ttft=times[0] - sent, itl=gaps, prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
    )  # fmt: skip
