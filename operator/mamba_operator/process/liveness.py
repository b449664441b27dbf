"""HTTP server of the operator for /healthz, /readyz and /metrics, on a port of its own.

/healthz fails when a restart would help: the event loop lags, a watch is stale, a pass hangs. A standby that
waits for the lease is healthy and ready, because it can take over. Called by `main`; knows no Kubernetes.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

Check = Callable[[], str | None]
"""Function that returns the problem as a message; None without a problem."""
BEAT_SECONDS = 1.0
"""Seconds between two beats of the event loop's check."""
MAX_LAG_SECONDS = 10.0
"""Delay of the event loop's timers, in seconds, beyond which liveness fails."""


class LoopLag:
    """Measures how late timers of the event loop run, which shows that a handler blocks the loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat = clock()
        self.worst = 0.0
        """Delay of the last beat, in seconds."""

    async def run(self) -> None:
        """Measure the delay of a timer every `BEAT_SECONDS`, until the task is cancelled."""
        while True:
            self._beat = self._clock()
            await asyncio.sleep(BEAT_SECONDS)
            self.worst = max(self._clock() - self._beat - BEAT_SECONDS, 0.0)

    def check(self) -> str | None:
        """Return a message if the event loop lags too much, otherwise None: a `Check`."""
        lag = max(self.worst, self._clock() - self._beat - BEAT_SECONDS)
        return f"the event loop lags by {lag:.1f} s" if lag > MAX_LAG_SECONDS else None


@asynccontextmanager
async def liveness_server(
    host: str, port: int, *, checks: Callable[[], list[str]], ready: Check, registry: CollectorRegistry
) -> AsyncIterator[int]:
    """Serve for the length of the block, and yield the port. `::` is every address, of IPv4 too.

    `checks` returns the problems that /healthz reports, `ready` the problem that /readyz reports, and
    `registry` holds the metrics.

    Raises:
        OSError: the address cannot be bound.
    """

    async def healthz(_request: web.Request) -> web.Response:
        problems = checks()
        return web.Response(status=500 if problems else 200, text="\n".join(problems) or "ok")

    async def readyz(_request: web.Request) -> web.Response:
        problem = ready()
        return web.Response(status=503 if problem else 200, text=problem or "ok")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/livez", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, listen(host, port)).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, which also accepts IPv4 if `host` is `::`. Raises OSError."""
    # Created here, because asyncio's IPv6 sockets refuse IPv4, and clusters have either family.
    if host == "::" and not socket.has_dualstack_ipv6():
        host = "0.0.0.0"  # noqa: S104 - requested; a kernel without IPv6 has no other
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
