"""Creates the parts of one gateway, in an order in which each part finds those that it depends on.

Called by `server`. Large clients (Kubernetes, Redis, gRPC) are imported only if the settings require them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp

from mamba_edge.api_keys import KeyFile
from mamba_edge.app.cors import with_cors
from mamba_edge.exchange.request_body import BodyBudget
from mamba_edge.history.memory_history import MemoryHistory
from mamba_edge.history.response_history import ResponseHistory
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.allowance import LEAVE_SECONDS
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.api.app import make_app
from mamba_gateway.api.local_routes import LocalRoutes, WarmUp
from mamba_gateway.api.serving_status import EngineStatusClient, StatusEndpoint
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.endpoints.probe import Prober
from mamba_gateway.key_limits import KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prefix_index.source import prefixes_followed
from mamba_gateway.process.endpoint_source import endpoints_followed
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.relay.proxy_endpoint import ProxyEndpoint
from mamba_gateway.relay.relay import Relay
from mamba_gateway.routing.router import EndpointWait, Router
from mamba_gateway.routing.scoring import RoutingWeights
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.upstream.connector import make_session, upstream_connector
from mamba_gateway.upstream.silence import LivenessChecks
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_url import url_from
from mamba_telemetry.tracing import Tracing

if TYPE_CHECKING:
    from mamba_gateway.endpoint_picker.picker import SharedParts
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

    @property
    def engine_key(self) -> Callable[[], bytes] | None:
        """Function that returns the key for engines; None = no key is sent."""
        engines = self.engines
        return None if engines is None else lambda: engines.first


@dataclass(frozen=True, slots=True)
class Gateway:
    """Parts of one gateway that the server uses."""

    app: ASGIApp
    pool: Pool
    admission: Admission
    proxy: ProxyEndpoint
    picker: "PickerServer | None"
    """The endpoint picker; None = the settings require none."""


@contextlib.asynccontextmanager
async def built(
    settings: GatewaySettings,
    keys: KeyFiles,
    tracing: Tracing,
    rng: Random,
    picker_ready: Callable[[int], None],
) -> AsyncIterator[Gateway]:
    """Create a gateway, whose tasks run and whose connections are open for the duration of the block.

    Raises the errors of `server.serve` about files, the cluster and the endpoint picker.
    """
    limits, index, engine_key = settings.key_limits, PrefixIndex(), keys.engine_key
    bodies = BodyBudget.with_room_for_one(settings.max_held_body_bytes, settings.max_body_bytes)

    def dispatch() -> None:
        admission.dispatch()  # assigned below, before the pool gets its engines

    pool = Pool(expected_model=settings.served_model_name, on_change=dispatch)
    metrics = GatewayMetrics(pool.snapshot, index, tracing, pool.serves, lambda: bodies.held)
    admission = Admission(
        settings.max_in_flight, settings.max_queue, settings.queue_timeout, time.monotonic,
        capacity=pool.capacity,
        weight=limits.weight,
        on_refused=lambda cause, key: metrics.refused.labels(cause, key).inc(),
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        session = await enter(make_session(settings.connect_timeout, settings.idle_timeout))
        connector = await enter(upstream_connector(settings.connect_timeout, settings.idle_timeout))
        liveness = LivenessChecks(connector, settings.probe_timeout, settings.silence_timeout)
        prober = Prober(
            session, pool, rng,
            interval=settings.probe_interval, timeout=settings.probe_timeout,
            key=engine_key, on_unanswered=liveness.doubt,
        )  # fmt: skip
        stack.push_async_callback(prober.close)
        source = await enter(prefixes_followed(settings, session, index, keys.engines))
        wake = await enter(endpoints_followed(settings, prober.set_targets, source, rng))
        limiter = await enter(_limiter(settings, limits, metrics))
        # With a weight of 0, routing does not use what the engines have cached.
        reads_prompts = settings.prefix_weight or limits.count_tokens
        texts = TextProcessors(session, pool, time.monotonic, engine_key) if reads_prompts else None
        prompts = PromptReader(texts, metrics, pool.adapter_of) if texts else None
        weights = RoutingWeights(settings.prefix_weight, settings.load_weight)
        router = Router(pool, metrics, rng, weights=weights, index=index)
        relay = Relay(
            connector, pool, metrics, router,
            hold_timeout=settings.hold_timeout, max_attempts=settings.max_attempts,
            request_timeout=settings.request_timeout, liveness=liveness, wake=wake,
            hand_over_tokens=settings.hand_over_tokens,
        )  # fmt: skip
        history = await enter(_history(settings))
        proxy = ProxyEndpoint(
            relay, admission, metrics, keys.clients, history=history,
            limiter=limiter, prompts=prompts, backend_keys=keys.engines,
            max_body_bytes=settings.max_body_bytes,
            body_timeout=settings.body_timeout, comment_interval=settings.comment_interval,
        )  # fmt: skip
        warm_up = WarmUp(pool, index, texts, time.monotonic)
        routes = LocalRoutes(pool, admission, metrics, router.log, warm_up.missing)
        fetch = EngineStatusClient(session, engine_key).fetch
        status = StatusEndpoint(pool, admission, metrics, routes.readiness, fetch)
        app = make_app(routes, status, proxy, keys.clients, bodies, tracing, history)
        hold = EndpointWait(pool, metrics, wake)

        def shared_parts() -> "SharedParts":
            from mamba_gateway.endpoint_picker.picker import SharedParts

            return SharedParts(pool, metrics, admission, limiter, router, hold, prompts, bodies)

        if texts is not None:
            await enter(_running(texts.work(), "tokenizers"))
        picker = await enter(_picker(settings, shared_parts, keys, tracing, picker_ready))
        yield Gateway(with_cors(app, settings.cors_origin), pool, admission, proxy, picker)


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` as a task for the duration of the block."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _limiter(
    settings: GatewaySettings, limits: KeyLimitTable, metrics: GatewayMetrics
) -> AsyncIterator[RateLimiter]:
    """Enforce the limits of keys for the duration of the block, counted in Redis if there is one."""
    url = url_from(settings.redis_url, settings.redis_url_file) if limits.limited else None
    shared = None
    if url is not None:
        from mamba_gateway.admission.shared_allowance import SharedAllowances
        from mamba_prefix.redis_client import make_client

        shared = SharedAllowances(make_client(url, answer_seconds=LEAVE_SECONDS), settings.index_scope)
    limiter = RateLimiter(limits, metrics, time.monotonic, shared)
    try:
        async with _running(limiter.work(), "limits of keys"):
            yield limiter
    finally:
        await limiter.close()


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
async def _picker(
    settings: GatewaySettings,
    shared_parts: Callable[[], "SharedParts"],
    keys: KeyFiles,
    tracing: Tracing,
    ready: Callable[[int], None],
) -> AsyncIterator["PickerServer | None"]:
    """Serve the endpoint picker for the duration of the block, if the settings require one."""
    if settings.endpoint_picker_port is None:
        yield None
        return
    from mamba_gateway.endpoint_picker.server import make_picker, picker_listening

    parts = shared_parts()
    picker = make_picker(settings, parts, keys.clients, keys.engines, tracing)
    async with picker_listening(settings, picker, parts.pool) as listening:
        ready(listening.port)
        yield listening
