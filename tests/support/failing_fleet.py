"""A gateway's own parts over a fleet of engines that are well, slow, dead, or reject, all on virtual time."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mamba_edge.errors import ApiError
from mamba_gateway.admission.admission import Admission, PermitRequest
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.relay.relay import Relay
from mamba_gateway.routing.router import Router
from mamba_gateway.upstream.connection import EngineUnreachable
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_gateway.upstream.silence import LivenessChecks

PLACES = 4
"""Requests that an engine runs at once; it takes eight more, and answers 429 to others."""
QUEUE = 8
PROBE_SECONDS = 1.0


@dataclass
class Engine:
    """One engine: `status` is what it answers, 200 after `seconds` of work; None = nobody is there."""

    status: int | None = 200
    seconds: float = 0.2
    comes_at: float = 0.0
    """When it becomes ready."""
    active: int = 0
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PLACES))

    async def answer(self) -> int:
        """Route a request and return its status."""
        if self.status is None:
            raise EngineUnreachable("nobody listens")
        if self.status != 200:
            return self.status
        if self.active >= PLACES + QUEUE:
            return 429
        self.active += 1
        try:
            async with self.turns:
                await asyncio.sleep(self.seconds)
        finally:
            self.active -= 1
        return 200


class WholeAnswer:
    """An answer that is there at once, without a body."""

    complete = True
    headers = ((b"content-length", b"0"),)

    def __init__(self, status: int) -> None:
        self.status = status

    async def consume(self, _take: Any) -> bytes:
        return b""

    def close(self) -> None:
        """Close nothing: no connection is open."""


class Fleet:
    """A gateway and its engines. Make it where its loop runs."""

    def __init__(self, engines: Iterable[Engine], **limits: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.engines = {f"http://e{number}": engine for number, engine in enumerate(engines)}
        self.pool = Pool(self.loop.time, on_change=self._dispatch)
        self.admission = Admission(
            limits.get("max_in_flight", 64), limits.get("max_queue", 16), 60.0, self.loop.time,
            capacity=self.pool.capacity,
        )  # fmt: skip
        metrics = GatewayMetrics(self.pool.snapshot)
        router = Router(self.pool, metrics, Random(1), clock=self.loop.time)
        connector: Any = self  # what the relay asks of one is `send` and `loop`
        self.relay = Relay(
            connector, self.pool, metrics, router, hold_timeout=60.0, max_attempts=3, request_timeout=600.0,
            hand_over_tokens=512,
            liveness=LivenessChecks(connector, timeout=2.0, seconds=600.0), wake=lambda: None,
        )  # fmt: skip
        self.failures: list[tuple[str, object, bool]] = []
        """Failed requests: key, result for the client, whether a healthy engine was idle."""
        self.answered = 0
        self.pool.set_targets(Target(url) for url in self.engines)
        self._probing = asyncio.create_task(self._probe())

    def _dispatch(self) -> None:
        self.admission.dispatch()  # pool and admission need each other

    async def send(self, base: str, _start: str, _headers: object, _body: bytes) -> tuple[WholeAnswer, bytes]:
        """Stand in for the connector."""
        return WholeAnswer(await self.engines[base].answer()), b""

    async def ask(self, key: str) -> None:
        """Send one request as the proxy endpoint does."""
        prompts: list[int] = []

        async def to_client(message: Any) -> None:
            if message["type"] == "http.response.start":
                prompts.append(message["status"])

        try:
            with self.admission.admit(key):
                permit = self.admission.permit(PermitRequest(key, model="m"))
                if not permit.try_acquire():
                    await permit.acquire()
                try:
                    request = UpstreamRequest("/v1/completions", "", [], b"{}", "m", permit=permit)
                    await self.relay.run(request, to_client)
                finally:
                    permit.used(1.0)
                    permit.release()
        except ApiError as error:
            prompts.append(error.status)
        if prompts == [200]:
            self.answered += 1
        else:
            self.failures.append((key, prompts, self.idle))

    @property
    def idle(self) -> bool:
        """An engine that is well, and was when it was looked at last, has a place that nobody takes."""
        looked = self.loop.time() - 2 * PROBE_SECONDS
        return any(
            one.status == 200 and one.comes_at <= looked and one.active < PLACES
            for one in self.engines.values()
        )

    async def close(self) -> None:
        """Stop polling the engines."""
        self._probing.cancel()
        await asyncio.gather(self._probing, return_exceptions=True)

    async def _probe(self) -> None:
        # Whatever it does to requests, each engine says that it is ready.
        while True:
            for url, engine in self.engines.items():
                report = ProbeReport(
                    ready=engine.comes_at <= self.loop.time(), models=({"id": "m"},),
                    running=min(PLACES, engine.active), waiting=max(0, engine.active - PLACES),
                    max_running=PLACES,
                )  # fmt: skip
                self.pool.report(url, report)
            await asyncio.sleep(PROBE_SECONDS)
