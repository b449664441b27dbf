"""Routes that the gateway answers itself: models, routing decisions, readiness, metrics, version.

The handlers read the pool and the admission. `app` assigns the paths, and decides which of them require a
key.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from mamba_api.openai_responses import Readiness
from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import ModelNotFound, NotReady
from mamba_gateway.admission.admission import Admission
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.routing.decision import MAX_RECORDS, RoutingLog, no_such_model
from mamba_prefix.prefix_index import PrefixIndex
from mamba_telemetry.registry import expose

WARM_UP_SECONDS = 5.0
"""Longest duration of the warm-up in seconds. If Redis or a tokenizer is missing by then, requests are routed
without it."""


class GatewayReadiness(Readiness):
    """Body of the gateway's `/readyz` and `/health`."""

    endpoints: dict[str, int] = Field(default_factory=dict)
    """`known`: number of engines; `ready`: number of engines that may be chosen."""
    reasons: dict[str, str] = Field(default_factory=dict)
    """For each engine that may not be chosen, by its name: the reason."""


class DecisionList(BaseModel):
    """Body of `/v1/routing/decisions`."""

    object: str = "list"
    data: list[dict[str, Any]] = Field(default_factory=list)
    """Decisions, the newest first: the chosen engine, the reason, and the compared costs in seconds."""


class WarmUp:
    """Reports what a gateway that has just started lacks to route well: the cached prefixes and tokenizers.

    The gateway serves requests meanwhile, and reports that it is not ready, so that clients prefer other
    gateways.
    """

    def __init__(
        self, pool: Pool, index: PrefixIndex, texts: TextProcessors | None, clock: Callable[[], float]
    ) -> None:
        self._pool, self._index, self._texts, self._clock = pool, index, texts, clock
        self._until = clock() + WARM_UP_SECONDS
        self._over = texts is None

    def missing(self) -> str:
        """Return what the gateway still lacks; "" if nothing, or if the warm-up has lasted long enough."""
        if self._over:
            return ""
        if any(endpoint.ready for endpoint in self._pool.snapshot()) and self._clock() < self._until:
            if self._texts is not None and not self._texts.all_queried:
                return "the engines' tokenizers have not been read yet"
            if self._index.state == "unavailable":
                return "the prefix index has not been read yet"
        self._over = True
        return ""


class LocalRoutes:
    """Handlers of one gateway."""

    def __init__(
        self,
        pool: Pool,
        admission: Admission,
        metrics: GatewayMetrics,
        decisions: RoutingLog,
        missing: Callable[[], str] = str,
    ) -> None:
        """Create the handlers. `missing` returns what the gateway lacks to be ready; "" = nothing."""
        self._pool, self._admission, self._metrics = pool, admission, metrics
        self._decisions, self._missing = decisions, missing

    async def models(self) -> Response:
        """List the models of all engines, ready or not, with one entry for each name."""
        return JsonResponse({"object": "list", "data": self._pool.model_entries()})

    async def model(self, name: str) -> Response:
        """Return one model by name. Raises ModelNotFound."""
        for entry in self._pool.model_entries():
            if entry["id"] == name:
                return JsonResponse(entry)
        raise ModelNotFound(no_such_model(name, self._pool.model_names()), param="model")

    async def decisions(self, limit: Annotated[int, Query(ge=1, le=MAX_RECORDS)] = 32) -> Response:
        """Return the last `limit` choices of an engine, the newest first, each with the compared costs."""
        entries = [record.log_entry() for record in self._decisions.last(limit)]
        return JsonResponse({"object": "list", "data": entries})

    async def livez(self) -> dict[str, str]:
        """Answer 200, which shows that the event loop of this process works."""
        return {"status": "alive"}

    async def readyz(self) -> Response:
        """Answer 200 if the gateway accepts requests. Without engines, requests wait for one for a while."""
        state = self.readiness()
        body = state.model_dump_json().encode()
        if state.status == "ready":
            return JsonResponse(body)
        headers = {"retry-after": str(int(NotReady.retry_after or 1))}
        if state.status == "draining":
            headers["connection"] = "close"
        return JsonResponse(body, 503, headers=headers)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as Prometheus text, or as OpenMetrics with exemplars if that is accepted."""
        self._metrics.in_flight.set(self._admission.in_flight)
        self._metrics.queued.set(self._admission.queued)
        self._metrics.waiting.clear()
        for key, count in self._admission.waiting().items():
            self._metrics.waiting.labels(key).set(count)
        body, content_type = expose(self._metrics.registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def version(self) -> dict[str, str]:
        """Return the installed version of mambaserve."""
        return {"version": version("mambaserve"), "component": "gateway"}

    def readiness(self) -> GatewayReadiness:
        """Return whether the gateway accepts requests, and which engines may be chosen."""
        snapshot = self._pool.snapshot()
        endpoints = {"known": len(snapshot), "ready": sum(e.ready and not e.draining for e in snapshot)}
        reasons = self._pool.reasons()
        if self._admission.draining:
            reason = f"draining: {self._admission.admitted} requests are finishing"
            return GatewayReadiness(status="draining", reason=reason, endpoints=endpoints, reasons=reasons)
        missing = self._missing() if self._pool.synced else "the list of engines has not been read yet"
        if missing:
            reason = f"loading: {missing}"
            return GatewayReadiness(status="loading", reason=reason, endpoints=endpoints, reasons=reasons)
        reason = f"ready: {endpoints['ready']} of {endpoints['known']} engines may be chosen"
        return GatewayReadiness(status="ready", reason=reason, endpoints=endpoints, reasons=reasons)
