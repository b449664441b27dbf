"""The proxy endpoint without a server: scripted engines below it, a client's hand above it."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import Send

from asgi import Asked, ask
from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.request_body import BodyBudget
from mamba_edge.exchange.request_middleware import RequestMiddleware
from mamba_edge.usage.prices import Prices
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.key_limits import KeyLimits, KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.relay.proxy_endpoint import ProxyEndpoint
from mamba_gateway.relay.request_lane import RequestLane
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_telemetry.tracing import OFF

PATH = "/v1/completions"
BODY = {"model": "m", "prompt": "x"}
Script = Callable[[UpstreamRequest, Send], Awaitable[None]]


async def fine(_call: UpstreamRequest, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def begun(_call: UpstreamRequest, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def hang(_call: UpstreamRequest, _send: Send) -> None:
    await asyncio.Event().wait()


class ScriptedRelay:
    """Stands in for the engines: does what the script says, remembers the calls."""

    loop = None  # whichever runs

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[UpstreamRequest] = []
        self.cancelling = False
        self.has_choice = True

    async def run(self, call: UpstreamRequest, send: Send) -> None:
        self.calls.append(call)
        await self.script(call, send)


class ProxyHarness:
    """A gateway without its server: `ask` it, then read its numbers."""

    def __init__(self, script: Script = fine, keys: Path | None = None, **limits: Any) -> None:
        table = limits.get("limits", KeyLimitTable(KeyLimits(), {}))
        pool = Pool()
        pool.set_targets([Target("http://e")])
        pool.report("http://e", ProbeReport(ready=True, models=({"id": "m"},)))
        self.relay = ScriptedRelay(script)
        self.metrics = GatewayMetrics(pool.snapshot)
        self.admission = Admission(
            limits.get("places", 2), limits.get("queue", 1), limits.get("queue_timeout", 5.0), time.monotonic,
            capacity=limits.get("free", lambda _: math.inf), weight=lambda key: table.limits_of(key).weight,
            on_refused=lambda cause, key: self.metrics.refused.labels(cause, key).inc(),
        )  # fmt: skip
        limiter = RateLimiter(table, self.metrics, lambda: asyncio.get_running_loop().time())
        lane = RequestLane(
            self.relay,  # type: ignore[arg-type]
            self.admission, limiter, limits.get("prompts"), limits.get("backend_keys"),
            prices=limits.get("prices", Prices()),
        )  # fmt: skip
        self.proxy = ProxyEndpoint(
            lane, self.admission, self.metrics, KeyFile(keys, "--api-key-file") if keys else None,
            max_body_bytes=limits.get("max_body_bytes", 1000), body_timeout=limits.get("body_timeout", 5.0),
            comment_interval=limits.get("comment_interval", 15.0),
        )  # fmt: skip

        self.bodies = BodyBudget(limits.get("max_held_body_bytes", 10_000))
        self.app = RequestMiddleware(
            self.proxy, route_of=str, answered=lambda *_: None, bodies=self.bodies,
            tracing=limits.get("tracing", OFF), traced=frozenset((PATH,)),
        )  # fmt: skip

    def ask(self, body: Any = None, **more: Any) -> Asked:
        return ask(self.app, "POST", PATH, BODY if body is None else body, **more)

    def asked(self, **more: Any) -> Asked:
        return Asked(self.app, "POST", PATH, **more)

    def answered(self) -> dict[tuple[str, str], float]:
        """Return the number of counted requests, by model and status."""
        return {
            (labels["model"], labels["code"]): value
            for name, labels, value in samples(self.metrics.registry)
            if name == "mambaserve_gateway_requests_total"
        }

    def count(self, series: str) -> float:
        return sum(value for name, _, value in samples(self.metrics.registry) if name == series)

    def is_empty(self) -> bool:
        return (self.admission.admitted, self.admission.in_flight) == (0, 0)


def samples(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float]]:
    return [(one.name, one.labels, one.value) for family in registry.collect() for one in family.samples]
