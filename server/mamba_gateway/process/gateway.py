"""Creates the parts of one gateway, in an order in which each part finds those that it depends on.

Called by `server`. Large clients (Kubernetes, Redis, gRPC) are imported only if the settings require them.
"""

import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

from starlette.types import ASGIApp

from mamba_edge.api_keys import KeyFile
from mamba_edge.app.cors import with_cors
from mamba_edge.exchange.request_body import BodyBudget
from mamba_edge.history.memory_history import MemoryHistory
from mamba_edge.history.response_history import ResponseHistory
from mamba_gateway.admission.admission import Admission
from mamba_gateway.api.app import make_app
from mamba_gateway.api.local_routes import EngineView, LocalRoutes, OneModel
from mamba_gateway.api.serving_status import EngineStatusClient, StatusEndpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.models.adapter_names import AdapterNames, follow_names
from mamba_gateway.models.model_parts import (
    ModelParts,
    SharedCounts,
    engine_key_of,
    model_running,
    running,
)
from mamba_gateway.models.model_set import ModelSet, closing, follow
from mamba_gateway.models.models_file import ModelsFile, model_settings
from mamba_gateway.relay.proxy_endpoint import ProxyEndpoint
from mamba_gateway.relay.request_lane import Lanes, RequestLane
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.usage.ledger_store import LedgerStore, MemoryLedger
from mamba_gateway.usage.usage_ledger import UsageLedger
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_url import url_from
from mamba_settings.models_document import ModelEntry
from mamba_telemetry.tracing import Tracing

if TYPE_CHECKING:
    from mamba_gateway.endpoint_picker.server import PickerServer
    from mamba_gateway.redis_history import RedisHistory


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Files with the API keys of one gateway."""

    clients: KeyFile | None
    """Keys that clients must present; None = no key is required."""
    engines: KeyFile | None
    """Keys for engines, of which the first is sent; None = no key is sent."""

    @classmethod
    def of(cls, settings: GatewaySettings) -> "KeyFiles":
        """Read the files. Raises KeyFileError."""
        clients, engines = settings.api_key_file, settings.backend_key_file
        return cls(
            KeyFile(clients, "--api-key-file") if clients else None,
            KeyFile(engines, "--backend-key-file") if engines else None,
        )


class Engines(EngineView, Protocol):
    """Engines of one gateway, for whose first probes the server waits."""

    async def changed(self) -> None:
        """Wait for the next change of the engines or their reports."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Parts of one gateway that the server uses."""

    app: ASGIApp
    engines: Engines
    admission: Admission
    proxy: ProxyEndpoint
    picker: "PickerServer | None"
    """The endpoint picker; None = the settings require none."""
    max_connections: int
    """Maximum number of connections, which includes one for each request that may be accepted."""


@dataclass(frozen=True, slots=True)
class _Front:
    """Parts in which a gateway of one model differs from one of several."""

    engines: Engines
    admission: Admission
    metrics: GatewayMetrics
    lanes: RequestLane | Lanes
    routes: LocalRoutes
    status: StatusEndpoint
    parts: ModelParts | None
    """Parts of the only model; None = there are several."""
    max_connections: int


@contextlib.asynccontextmanager
async def built(
    settings: GatewaySettings,
    keys: KeyFiles,
    tracing: Tracing,
    rng: Random,
    picker_ready: Callable[[int], None],
) -> AsyncIterator[Gateway]:
    """Create a gateway, whose tasks run and whose connections are open for the duration of the block.

    `picker_ready` is called with the port of the endpoint picker. Raises the errors of `server.serve` about
    files, the cluster and the endpoint picker.
    """
    bodies = BodyBudget.with_room_for_one(settings.max_held_body_bytes, settings.max_body_bytes)
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        ledger = await enter(_ledger(settings))
        kind = _one_model if settings.models_file is None else _several_models
        front = await enter(kind(settings, keys, tracing, rng, bodies, ledger))
        front.metrics.registry.register(ledger)
        history = await enter(_history(settings))
        proxy = ProxyEndpoint(
            front.lanes, front.admission, front.metrics, keys.clients, history=history,
            max_body_bytes=settings.max_body_bytes,
            body_timeout=settings.body_timeout, comment_interval=settings.comment_interval,
        )  # fmt: skip
        app = make_app(front.routes, front.status, proxy, keys.clients, bodies, tracing, history, ledger)
        picker = await enter(_picker(settings, front.parts, keys, tracing, picker_ready, bodies))
        yield Gateway(
            with_cors(app, settings.cors_origin),
            front.engines,
            front.admission,
            proxy,
            picker,
            front.max_connections,
        )


@contextlib.asynccontextmanager
async def _one_model(
    settings: GatewaySettings,
    keys: KeyFiles,
    tracing: Tracing,
    rng: Random,
    bodies: BodyBudget,
    ledger: UsageLedger,
) -> AsyncIterator[_Front]:
    """Create the parts of the only model of `settings`, and run them for the duration of the block."""

    def metrics_of(pool: Pool, index: PrefixIndex) -> GatewayMetrics:
        return GatewayMetrics(pool.snapshot, index, tracing, pool.serves, lambda: bodies.held)

    async with model_running(settings, keys.engines, rng, metrics_of, take_usage=ledger.take) as parts:
        pool, admission, metrics = parts.pool, parts.lane.admission, parts.metrics
        routes = LocalRoutes(
            pool, admission, metrics, OneModel(pool, parts.router.log), parts.warm_up.missing
        )
        fetch = EngineStatusClient(parts.session, engine_key_of(keys.engines)).fetch
        status = StatusEndpoint(pool, admission, metrics, routes.readiness, fetch)
        front = _Front(pool, admission, metrics, parts.lane, routes, status, parts, settings.connections)
        if settings.adapter_names_file is None:
            yield front
            return
        names = AdapterNames(settings.adapter_names_file)
        pool.expect_adapters(names.read())
        async with running(follow_names(names, pool), "adapter names"):
            yield front


@contextlib.asynccontextmanager
async def _several_models(
    settings: GatewaySettings,
    keys: KeyFiles,
    tracing: Tracing,
    rng: Random,
    bodies: BodyBudget,
    ledger: UsageLedger,
) -> AsyncIterator[_Front]:
    """Run the parts of each model that the models file names, in the block, and follow the file's changes.

    Raises ModelsFileError for a file that cannot be used.
    """
    assert settings.models_file is not None
    file = ModelsFile(settings.models_file)
    document = file.read()
    own_settings = [model_settings(settings, entry) for entry in document.models if entry.parent is None]
    front = Admission(settings.max_in_flight, settings.max_queue, settings.queue_timeout, time.monotonic)

    def start(
        entry: ModelEntry, on_change: Callable[[], None]
    ) -> contextlib.AbstractAsyncContextManager[ModelParts]:
        own = model_settings(settings, entry)
        engine_keys = keys.engines
        if own.backend_key_file and own.backend_key_file != settings.backend_key_file:
            engine_keys = KeyFile(own.backend_key_file, "backend_key_file")
        counts = _counts(settings, own, entry)
        return model_running(own, engine_keys, rng, lambda *_: metrics, on_change, ledger.take, counts)

    models = ModelSet(settings, front, start)
    metrics = GatewayMetrics(models.snapshot, None, tracing, models.serves, lambda: bodies.held, models.loads)
    models.metrics = metrics
    async with closing(models):
        await models.apply(document, strict=True)
        routes = LocalRoutes(models, models, metrics, models, models.missing)
        status = StatusEndpoint(models, models, metrics, routes.readiness, models.engine_status)
        requests = sum(own.max_in_flight + own.max_queue for own in own_settings)
        connections = settings.connections
        if "max_connections" not in settings.model_fields_set:
            connections += requests
        async with running(follow(file, models), "models file"):
            yield _Front(models, front, metrics, models, routes, status, None, connections)


def _counts(settings: GatewaySettings, own: GatewaySettings, entry: ModelEntry) -> SharedCounts | None:
    """Return where the limits of a model are counted: in its own Redis, or in the Redis of the gateway.

    A MambaDeployment is one scope, however many gateways serve it. None means that there is no Redis. Raises
    BadRedisUrl.
    """
    if (counts := SharedCounts.of(own)) is not None:
        return counts
    if (shared := SharedCounts.of(settings)) is None:
        return None
    placed = own.deployment is not None and own.namespace is not None
    return replace(shared, scope=own.index_scope if placed else f"{shared.scope}/{entry.name}")


@contextlib.asynccontextmanager
async def _history(settings: GatewaySettings) -> AsyncIterator[ResponseHistory]:
    """Keep responses for the length of the block: in Redis where there is one, else in memory."""
    store: MemoryHistory | RedisHistory | None = None
    url = url_from(settings.redis_url, settings.redis_url_file)
    seconds, budget = settings.response_ttl, settings.response_budget
    if seconds and url is not None:
        from mamba_gateway import redis_history
        from mamba_prefix.redis_client import make_client

        client = make_client(url, answer_seconds=redis_history.REDIS_SECONDS)
        store = redis_history.RedisHistory(client, settings.index_scope, seconds, budget)
    elif seconds:
        store = MemoryHistory(seconds, budget, time.monotonic)
    try:
        yield ResponseHistory(store, settings.max_body_bytes)
    finally:
        if store is not None:
            await store.close()


@contextlib.asynccontextmanager
async def _ledger(settings: GatewaySettings) -> AsyncIterator[UsageLedger]:
    """Keep the use of engines for the length of the block. Raises UsageFileError."""
    url = url_from(settings.redis_url, settings.redis_url_file)
    days, readers = settings.usage_days, frozenset(settings.usage_reader)
    async with contextlib.AsyncExitStack() as stack:
        store: LedgerStore
        if url is None:
            store = memory = MemoryLedger(days, Path(settings.usage_file) if settings.usage_file else None)
            stack.push_async_callback(store.close)
            await stack.enter_async_context(running(memory.work(), "ledger"))
        else:
            from mamba_gateway.usage.redis_ledger import LEDGER_SECONDS, RedisLedger
            from mamba_prefix.redis_client import make_client

            client = make_client(url, answer_seconds=LEDGER_SECONDS)
            store = RedisLedger(client, settings.index_scope, days)
            stack.push_async_callback(store.close)
        yield UsageLedger(store, prices=settings.prices, days=days, readers=readers)


@contextlib.asynccontextmanager
async def _picker(
    settings: GatewaySettings,
    parts: ModelParts | None,
    keys: KeyFiles,
    tracing: Tracing,
    ready: Callable[[int], None],
    bodies: BodyBudget,
) -> AsyncIterator["PickerServer | None"]:
    """Serve the endpoint picker for the duration of the block, if the settings require one.

    `ready` is called with its port. `parts` is None in a gateway of several models, which has no picker.
    """
    if settings.endpoint_picker_port is None:
        yield None
        return
    from mamba_gateway.endpoint_picker.picker import SharedParts
    from mamba_gateway.endpoint_picker.server import make_picker, picker_listening

    assert parts is not None  # the settings refuse a picker for several models
    lane = parts.lane
    shared = SharedParts(
        parts.pool,
        parts.metrics,
        lane.admission,
        lane.limiter,
        parts.router,
        parts.hold,
        lane.prompts,
        bodies,
    )
    picker = make_picker(settings, shared, keys.clients, keys.engines, tracing)
    async with picker_listening(settings, picker, parts.pool) as listening:
        ready(listening.port)
        yield listening
