"""Fake engines (real HTTP servers with a script) and gateways in local of them, all in one event loop."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from eventually import until
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from prefork import FORK_SERVER, ForkedProcess
from virtual_loop import loop_factories

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Any:
    """Run all tests except those of commands on virtual time, in one process."""
    return loop_factories(item)


def event(text: str, finish: str | None = None, **more: Any) -> bytes:
    """Return one completion chunk as an engine frames it."""
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": None}
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        **more,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@dataclass
class FakeEngine:
    """One engine: says what it is told to say, counts what it sees."""

    name: str
    models: tuple[str, ...] = ("m",)
    ready: bool = True
    reason: str = "loading"
    running: int = 0
    waiting: int = 0
    max_running: int | None = None
    transfer: dict[str, Any] | None = None
    lives: bool = True
    delay: float = 0.0
    handler: Handler | None = None
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    """Headers that end exports."""
    active: int = 0
    most_active: int = 0
    cancelled: list[float] = field(default_factory=list)
    url: str = ""
    port: int = 0
    probes: int = 0
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen; on the port of the first start when started again."""
        app = web.Application(client_max_size=256 * 1024 * 1024)
        app.add_routes(
            [
                web.post("/v1/completions", self._post),
                web.post("/v1/chat/completions", self._post),
                web.post("/v1/messages", self._post),
                web.post("/v1/messages/count_tokens", self._post),
                web.post("/v1/responses", self._post),
                web.post("/v1/handover", self._release),
                web.get("/v1/models", self._list),
                web.get("/readyz", self._readyz),
                web.get("/livez", self._livez),
                web.get("/metrics", self._metrics),
                web.get("/openapi.json", self._openapi),
                web.post("/admin/drain", self._admin),
            ]
        )
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def kill(self) -> None:
        """Stop at once, with every connection."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            if runner.server is not None:
                for connection in list(runner.server.connections):
                    if connection.transport is not None:
                        connection.transport.abort()
            await runner.cleanup()

    async def _post(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.seen.append(request)
        self.bodies.append(raw)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(self.delay)
            return await (self.handler or answer)(request, json.loads(raw))
        except asyncio.CancelledError:
            self.cancelled.append(asyncio.get_running_loop().time())
            raise
        finally:
            self.active -= 1

    async def _release(self, request: web.Request) -> web.StreamResponse:
        self.released.append(request.headers["X-Mambaserve-Hand-Over"])
        return web.json_response({"released": True})

    async def _list(self, _request: web.Request) -> web.Response:
        data = [{"id": m, "object": "model", "created": 1, "owned_by": self.name} for m in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _readyz(self, _request: web.Request) -> web.Response:
        self.probes += 1
        if self.ready:
            return web.json_response({"status": "ready", "transfer": self.transfer})
        error = {"message": self.reason, "type": "server_error", "param": None, "code": self.reason}
        return web.json_response({"error": error}, status=503, headers={"Retry-After": "1"})

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(status=200 if self.lives else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = (
            "# HELP mambaserve_requests_running x\n# TYPE mambaserve_requests_running gauge\n"
            f'mambaserve_requests_running{{model="m"}} {self.running}\n'
            f'mambaserve_requests_waiting{{model="m"}} {self.waiting}\n'
        )
        if self.max_running is not None:
            text += f'mambaserve_max_running_requests{{model="m"}} {self.max_running}\n'
        return web.Response(text=text)

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.json_response({"openapi": "3.1.0", "info": {"title": self.name, "version": "1"}})

    async def _admin(self, _request: web.Request) -> web.Response:
        raise AssertionError("the gateway relayed an admin call")


async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answer like an engine: `max_tokens` events with `gap` seconds between them, or one JSON body."""
    count, gap = int(body.get("max_tokens", 3)), float(body.get("gap", 0))
    usage = {
        "prompt_tokens": len(body.get("prompt", "")),
        "completion_tokens": count,
        "total_tokens": len(body.get("prompt", "")) + count,
        "prompt_tokens_details": {"cached_tokens": int(body.get("cached", 0))},
    }
    if not body.get("stream"):
        await asyncio.sleep(gap * count)
        choice = {"index": 0, "text": "t" * count, "finish_reason": "length", "logprobs": None}
        shape = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m"}
        return web.json_response({**shape, "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for number in range(count):
        await response.write(event(f"{number} ", "length" if number == count - 1 else None))
        if gap:
            await asyncio.sleep(gap)
    if body.get("stream_options"):
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


@dataclass
class Gateway:
    """A running gateway and how to stop it."""

    url: str
    stop: asyncio.Event
    task: "asyncio.Task[int]"

    async def metrics(self, client: aiohttp.ClientSession) -> dict[str, float]:
        """Return the gateway's series by full name with labels."""
        async with client.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}


COMMAND = ("-m", "mamba_cli", "gateway")
PATIENCE = 30.0
"""Longest wait for a real process, in seconds."""
EngineFactory = Callable[..., Awaitable[FakeEngine]]
Spawn = Callable[..., Awaitable[tuple[ForkedProcess, str]]]
GatewayFactory = Callable[..., Awaitable[Gateway]]


@pytest.fixture
async def engine() -> AsyncIterator[EngineFactory]:
    """Start a fake engine: `await engine("a", running=3)`."""
    started: list[FakeEngine] = []

    async def start(name: str = "a", **options: Any) -> FakeEngine:
        made = FakeEngine(name, **options)
        await made.start()
        started.append(made)
        return made

    yield start
    for one in started:
        await one.kill()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client without a connection limit."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest.fixture
async def gateway(client: aiohttp.ClientSession) -> AsyncIterator[GatewayFactory]:
    """Start a gateway: `await gateway(engine_a, engine_b, hold_timeout=0.2)`; waits until it sees them."""
    running: list[Gateway] = []

    async def start(*engines: FakeEngine, wait: bool = True, **options: Any) -> Gateway:
        defaults: dict[str, Any] = {
            "port": 0,
            "hold_timeout": 0.3,
            "probe_interval": 0.2,
            "drain_timeout": 5.0,
        }
        defaults["backend"] = tuple(one.url for one in engines)
        settings = GatewaySettings(**{**defaults, **options})
        where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        task = asyncio.create_task(serve(settings, where.set_result, stop=stop, rng=Random(7)))
        await asyncio.wait((where, task), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        made = Gateway(where.result(), stop, task)
        running.append(made)
        if wait:
            await until(lambda: all(one.probes > 0 for one in engines))
            await seen_ready(client, made, sum(one.ready for one in engines))
        return made

    yield start
    for one in running:
        one.stop.set()
        await one.task


async def seen_ready(client: aiohttp.ClientSession, gateway: Gateway, count: int) -> None:
    """Return when the gateway counts this many ready endpoints."""
    async with asyncio.timeout(5):
        while True:
            async with client.get(f"{gateway.url}/readyz") as response:
                body = await response.json()
            if body.get("endpoints", {}).get("ready") == count:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
async def spawn() -> AsyncIterator[Spawn]:
    """Start the command with options; returns the process and the URL of its ready line."""
    processes: list[ForkedProcess] = []

    async def start(*options: str) -> tuple[ForkedProcess, str]:
        process = FORK_SERVER.start(*COMMAND, "--port", "0", *options, env=os.environ)
        processes.append(process)
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := await asyncio.to_thread(process.stderr.readline):
                if found := re.search(r"mambaserve gateway ready at (http://\S+)", line):
                    return process, found[1]
        raise AssertionError(f"ended with {process.wait(PATIENCE)} before it was ready")

    yield start
    for process in processes:
        process.kill()
        process.wait(PATIENCE)
        process.close()


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """Return `until` for tests."""
    return until


@pytest.fixture
def wait_ready(client: aiohttp.ClientSession) -> Callable[[Gateway, int], Awaitable[None]]:
    """Wait for a number of ready endpoints in the gateway's eyes."""

    async def wait(gateway: Gateway, count: int) -> None:
        await seen_ready(client, gateway, count)

    return wait
