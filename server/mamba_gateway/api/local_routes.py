"""Routes that the gateway answers itself: models, routing decisions, readiness, metrics, version.

The handlers read the pool and the admission. `app` assigns the paths, and decides which of them require a
key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal, Protocol

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from mamba_api.openai_responses import ModelCard, Readiness
from mamba_edge.app.application import JsonResponse
from mamba_edge.errors import ModelNotFound, NotReady
from mamba_edge.exchange.request_context import context_of
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.errors import ModelForbidden
from mamba_gateway.key_limits import ANYONE
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.routing.decision import MAX_RECORDS, RoutingLog, RoutingRecord, no_such_model
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


class GatewayModelCard(ModelCard):
    """One model of a gateway."""

    state: Literal["ready", "starting", "stopped"] | None = None
    """Only of a gateway of several models: whether engines serve the model now, will soon, or have to be
    started by a request."""
    alias_of: str | None = None
    """Only of a gateway of several models: name of the model that has this further name."""


class GatewayModelList(BaseModel):
    """Body of `/v1/models` of a gateway."""

    object: Literal["list"] = "list"
    data: list[GatewayModelCard]
    """The models that the key may use."""


class DecisionList(BaseModel):
    """Body of `/v1/routing/decisions`."""

    object: str = "list"
    data: list[dict[str, Any]] = Field(default_factory=list)
    """Decisions, the newest first: the chosen engine, the reason, and the compared costs in seconds."""


class WarmUp:
    """Reports what a gateway that has just started lacks to route well: the cached prefixes and tokenizers.

    The gateway serves requests meanwhile, and reports that it is not ready, so that clients prefer other
    gateways. `texts` are the tokenizers; None = the gateway needs none, so that nothing is ever missing.
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


class EngineView(Protocol):
    """Shows a gateway's own routes its engines, as far as they may read them."""

    @property
    def synced(self) -> bool:
        """Whether the engines were read, and each of them was probed, at least once."""

    def snapshot(self) -> tuple[Endpoint, ...]:
        """Return all engines."""

    def reasons(self) -> Mapping[str, str]:
        """Return the reason for each engine that is not ready, by its name."""


class QueueView(Protocol):
    """Shows a gateway's own routes how many requests it has, and in which stage."""

    @property
    def in_flight(self) -> int:
        """Number of requests that are being relayed."""

    @property
    def queued(self) -> int:
        """Number of admitted requests that are not being relayed."""

    @property
    def admitted(self) -> int:
        """Number of admitted requests that have not ended."""

    @property
    def draining(self) -> bool:
        """Whether the gateway shuts down."""

    def waiting(self) -> dict[str, int]:
        """Return the number of requests that wait for a permit, by name of their key."""


class ModelCatalog(Protocol):
    """Lists the models of one gateway, as far as an API key may see them."""

    @property
    def names_are_public(self) -> bool:
        """Return whether whoever reaches the gateway may know every model."""

    def sees_all(self, key: str) -> bool:
        """Return whether the key may use every model."""

    def cards(self, key: str) -> Sequence[dict[str, Any]]:
        """Return the entries of `/v1/models`, one for each name."""

    def card(self, name: str, key: str) -> dict[str, Any]:
        """Return the entry of one name. Raises ModelForbidden, ModelNotFound."""

    def decisions(self, limit: int) -> Iterable[RoutingRecord]:
        """Return the last `limit` choices of an engine, the newest first."""


class OneModel:
    """The `ModelCatalog` of a gateway of one model, which every key may use."""

    names_are_public = True

    def __init__(self, pool: Pool, log: RoutingLog) -> None:
        self._pool, self._log = pool, log

    def sees_all(self, _key: str) -> bool:
        """Return True, since every key may use the model."""
        return True

    def cards(self, _key: str) -> Sequence[dict[str, Any]]:
        """Return the models that the engines report, with one entry for each name."""
        return self._pool.model_entries()

    def card(self, name: str, key: str) -> dict[str, Any]:
        """Return the entry of one name. Raises ModelNotFound."""
        for card in self.cards(key):
            if card["id"] == name:
                return card
        raise ModelNotFound(no_such_model(name, self._pool.model_names()), param="model")

    def decisions(self, limit: int) -> Iterable[RoutingRecord]:
        """Return the last `limit` choices of an engine, the newest first."""
        return self._log.last(limit)


OTHERS_ENGINES = (
    "this API key may use some models only, and this page shows the engines of all: ask with a key that may "
    "use every model"
)


class LocalRoutes:
    """Answers the requests that one gateway answers itself, without an engine."""

    def __init__(
        self,
        engines: EngineView,
        queue: QueueView,
        metrics: GatewayMetrics,
        catalog: ModelCatalog,
        missing: Callable[[], str] = str,
    ) -> None:
        """Create the handlers.

        `missing` returns what the gateway lacks to be ready; "" if nothing is missing.
        """
        self._engines, self._queue, self._metrics = engines, queue, metrics
        self._catalog, self._missing = catalog, missing

    async def models(self, request: Request) -> Response:
        """List the models that the key may use, ready or not, with one entry for each name."""
        return JsonResponse({"object": "list", "data": self._catalog.cards(_key_of(request))})

    async def model(self, name: str, request: Request) -> Response:
        """Return one model by name. Raises ModelForbidden, ModelNotFound."""
        return JsonResponse(self._catalog.card(name, _key_of(request)))

    def check_sees_all(self, request: Request) -> None:
        """Raise ModelForbidden for a key that may not use every model."""
        if not self._catalog.sees_all(_key_of(request)):
            raise ModelForbidden(OTHERS_ENGINES)

    async def decisions(self, limit: Annotated[int, Query(ge=1, le=MAX_RECORDS)] = 32) -> Response:
        """Return the last `limit` choices of an engine, the newest first, each with the compared costs."""
        entries = [record.log_entry() for record in self._catalog.decisions(limit)]
        return JsonResponse({"object": "list", "data": entries})

    async def livez(self) -> dict[str, str]:
        """Answer 200, which shows that the event loop of this process works."""
        return {"status": "alive"}

    async def readyz(self) -> Response:
        """Answer 200 if the gateway accepts requests. Without engines, requests wait for one for a while."""
        state = self.readiness()
        if not self._catalog.names_are_public:  # nobody shows a key here, and names of engines tell of models
            state = state.model_copy(update={"reasons": {}})
        body = state.model_dump_json().encode()
        if state.status == "ready":
            return JsonResponse(body)
        headers = {"retry-after": str(int(NotReady.retry_after or 1))}
        if state.status == "draining":
            headers["connection"] = "close"
        return JsonResponse(body, 503, headers=headers)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as Prometheus text, or as OpenMetrics with exemplars if that is accepted."""
        self._metrics.in_flight.set(self._queue.in_flight)
        self._metrics.queued.set(self._queue.queued)
        self._metrics.waiting.clear()
        for key, count in self._queue.waiting().items():
            self._metrics.waiting.labels(key).set(count)
        body, content_type = expose(self._metrics.registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def version(self) -> dict[str, str]:
        """Return the installed version of mambaserve."""
        return {"version": version("mambaserve"), "component": "gateway"}

    def readiness(self) -> GatewayReadiness:
        """Return whether the gateway accepts requests, and which engines may be chosen."""
        snapshot = self._engines.snapshot()
        endpoints = {"known": len(snapshot), "ready": sum(e.ready and not e.draining for e in snapshot)}
        reasons = dict(self._engines.reasons())
        if self._queue.draining:
            reason = f"draining: {self._queue.admitted} requests are finishing"
            return GatewayReadiness(status="draining", reason=reason, endpoints=endpoints, reasons=reasons)
        missing = self._missing() if self._engines.synced else "the list of engines has not been read yet"
        if missing:
            reason = f"loading: {missing}"
            return GatewayReadiness(status="loading", reason=reason, endpoints=endpoints, reasons=reasons)
        reason = f"ready: {endpoints['ready']} of {endpoints['known']} engines may be chosen"
        return GatewayReadiness(status="ready", reason=reason, endpoints=endpoints, reasons=reasons)


def _key_of(request: Request) -> str:
    return context_of(request.scope).key_name or ANYONE
