"""Frozen endpoints for the pure parts, and a relay with its pool for the others."""

from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.relay.relay import Relay
from mamba_gateway.routing.router import Router
from mamba_gateway.upstream.connector import UpstreamRequest, upstream_connector
from mamba_gateway.upstream.silence import LivenessChecks
from virtual_loop import loop_factories


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Any:
    """Run every test of this folder on virtual time: load cannot delay anything."""
    return loop_factories(item)


@pytest.fixture
def endpoint() -> Callable[..., Endpoint]:
    """Return a factory of endpoints that are healthy and idle unless the arguments differ."""

    def make(name: str, **changes: Any) -> Endpoint:
        fields: dict[str, Any] = {
            "url": f"http://{name}",
            "name": name,
            "ready": True,
            "draining": False,
            "models": frozenset({"m"}),
            "running": 0,
            "waiting": 0,
            "kv_usage": 0.0,
            "in_flight": 0,
            "in_flight_at_report": 0,
        }
        return Endpoint(**{**fields, **changes})

    return make


REQUEST = UpstreamRequest(
    "/v1/completions", "", [(b"content-type", b"application/json")], b'{"model": "m"}', "m"
)


class RelayHarness:
    """A relay, its pool and what the client got."""

    def __init__(self, connector: Any, **limits: Any) -> None:
        self.pool = Pool(expected_model=limits.pop("expected_model", None))
        self.metrics = GatewayMetrics(self.pool.snapshot)
        self.wakes = 0
        self.sent: list[dict[str, Any]] = []
        options = {"hold_timeout": 10.0, "max_attempts": 3, "request_timeout": 300.0, **limits}
        options = {"silence_timeout": 20.0, "probe_timeout": 2.0, "hand_over_tokens": 512, **options}
        self.router = Router(self.pool, self.metrics, Random(3), index=options.pop("index", None))
        seconds = options.pop("silence_timeout")
        self.liveness = LivenessChecks(connector, options.pop("probe_timeout"), seconds)
        self.relay = Relay(
            connector, self.pool, self.metrics, self.router,
            wake=self._wake, liveness=self.liveness, **options,
        )  # fmt: skip

    def _wake(self) -> None:
        self.wakes += 1

    def engines(self, *urls: str, **report: Any) -> None:
        """Make these the ready engines; the earlier ones are preferred."""
        self.pool.set_targets(Target(url, url.removeprefix("http://")) for url in urls)
        for place, url in enumerate(urls):
            self.pool.report(url, ProbeReport(**{"ready": True, "running": 10 * place, **report}))

    async def send(self, message: Any) -> None:
        self.sent.append(dict(message))

    async def run(self, request: UpstreamRequest | None = None) -> None:
        await self.relay.run(request or replace(REQUEST), self.send)

    @property
    def status(self) -> int:
        return self.sent[0]["status"] if self.sent else 0

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def in_flight(self) -> list[int]:
        return [endpoint.in_flight for endpoint in self.pool.snapshot()]

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"mambaserve_gateway_{name}", labels) or 0.0


@pytest.fixture
async def harness() -> AsyncIterator[Callable[..., RelayHarness]]:
    """Yield a factory of harnesses, called like `harness(hold_timeout=1)`."""
    async with upstream_connector(connect_timeout=2.0, idle_timeout=30.0) as connector:
        yield lambda **limits: RelayHarness(connector, **limits)
