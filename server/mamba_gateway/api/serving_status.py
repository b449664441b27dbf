"""`GET /v1/status` of a gateway: its queue, and the status of each engine.

Each request for the status queries all engines at once. For an engine that does not answer in time, the
status has what the pool knows.
"""

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version

import aiohttp
from starlette.responses import Response

from mamba_api.serving_status import EngineStatus, GatewayStatus, ServingStatus
from mamba_edge.app.application import JsonResponse
from mamba_edge.status_page import CachedValue
from mamba_gateway.api.local_routes import EngineView, GatewayReadiness, QueueView
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.headers import bearer
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics

STATUS_SECONDS = 2.0
"""Longest time, in seconds, to wait for the status of one engine."""
MAX_STATUS_BYTES = 1 << 20
"""Maximum size in bytes of the status of one engine."""


class StatusUnavailable(Exception):
    """The status of an engine cannot be read; the message gives the reason."""


class EngineStatusClient:
    """Reads the status of engines over HTTP; `key` returns the API key for engines."""

    def __init__(self, session: aiohttp.ClientSession, key: Callable[[], bytes] | None = None) -> None:
        self._session, self._key = session, key

    async def fetch(self, url: str) -> EngineStatus:
        """Return the status that the engine at `url` reports. Raises StatusUnavailable."""
        headers = {"Authorization": bearer(self._key())} if self._key else {}
        timeout = aiohttp.ClientTimeout(total=STATUS_SECONDS)
        try:
            async with self._session.get(f"{url}/v1/status", headers=headers, timeout=timeout) as answer:
                if answer.status != 200:
                    raise StatusUnavailable(f"/v1/status answered {answer.status}")
                body = bytearray()
                async for chunk in answer.content.iter_any():
                    body += chunk
                    if len(body) > MAX_STATUS_BYTES:
                        raise StatusUnavailable(f"/v1/status answered more than {MAX_STATUS_BYTES} bytes")
            [status] = ServingStatus.model_validate_json(bytes(body)).engines
        except TimeoutError as error:
            raise StatusUnavailable("/v1/status did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            raise StatusUnavailable(str(error) or type(error).__name__) from error
        except ValueError as error:
            raise StatusUnavailable(
                "/v1/status answered something that is not the status of an engine"
            ) from error
        return status


class StatusEndpoint:
    """Answers `/v1/status` from the gateway's own counts and the status of each engine.

    `fetch` returns an engine's status by URL, or raises StatusUnavailable.
    """

    def __init__(
        self,
        engines: EngineView,
        queue: QueueView,
        metrics: GatewayMetrics,
        readiness: Callable[[], GatewayReadiness],
        fetch: Callable[[str], Awaitable[EngineStatus]],
    ) -> None:
        self._engines, self._queue, self._metrics = engines, queue, metrics
        self._readiness, self._fetch = readiness, fetch
        self._shared = CachedValue(self._collect)

    async def status(self) -> Response:
        """Return the status of the gateway and of all its engines."""
        return JsonResponse(await self._shared.get())

    async def _collect(self) -> bytes:
        state, queue = self._readiness(), self._queue
        reasons = self._engines.reasons()
        engines = await asyncio.gather(
            *(self._engine(endpoint, reasons.get(endpoint.name, "")) for endpoint in self._engines.snapshot())
        )
        whole = ServingStatus(
            component="gateway",
            version=version("mambaserve"),
            status=state.status,
            reason=state.reason,
            gateway=GatewayStatus(
                in_flight=queue.in_flight,
                queued=queue.queued,
                held=self._metrics.waiting_for_engines,
                traffic=self._metrics.traffic(),
            ),
            engines=sorted(engines, key=lambda engine: engine.name),
        )
        return whole.model_dump_json().encode()

    async def _engine(self, endpoint: Endpoint, reason: str) -> EngineStatus:
        try:
            status = await self._fetch(endpoint.url)
        except StatusUnavailable as error:
            # Other inference servers have no such path; for them the pool knows how much work they have.
            return EngineStatus(
                name=endpoint.name,
                in_flight=endpoint.in_flight,
                status="ready" if endpoint.ready else "draining" if endpoint.draining else "unreachable",
                reason=reason or str(error),
                model=next(iter(sorted(endpoint.models or ())), None),
                running=endpoint.running,
                waiting=endpoint.waiting,
                cache_usage=endpoint.kv_usage,
            )
        return status.model_copy(update={"name": endpoint.name, "in_flight": endpoint.in_flight})
