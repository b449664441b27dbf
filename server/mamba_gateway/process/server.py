"""The process: builds the parts, serves until SIGTERM or SIGINT, drains, and says with what exit code to end.

Called by `mambaserve gateway`. A second signal, or the end of the drain time, cuts what still runs.
"""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import TYPE_CHECKING

import structlog
from starlette.types import ASGIApp

from mamba_edge.api_keys import KeyFile
from mamba_edge.app.cors import with_cors
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.exchange.body_budget import BodyBudget
from mamba_edge.exchange.request_arrivals import LEAVE_SHARE
from mamba_edge.listener import listen, url_of
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.allowance import LEAVE_SECONDS
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.api.app import make_app
from mamba_gateway.api.local_routes import LocalRoutes
from mamba_gateway.api.serving_status import EngineStatusClient, StatusEndpoint
from mamba_gateway.endpoints.engine_capacity import engine_capacity
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.endpoints.probe import Prober
from mamba_gateway.key_limits import KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prefix_index.source import prefixes_followed
from mamba_gateway.process.endpoint_source import endpoints_followed
from mamba_gateway.process.warm_up import WarmUp
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.relay.proxy_endpoint import ProxyEndpoint
from mamba_gateway.relay.relay import Relay
from mamba_gateway.relay.shared_parts import SharedParts
from mamba_gateway.routing.endpoint_wait import EndpointWait
from mamba_gateway.routing.router import Router
from mamba_gateway.routing.scoring import RoutingWeights
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.upstream.connector import upstream_connector
from mamba_gateway.upstream.request import make_session
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_url import url_from
from mamba_telemetry.tracing import OFF, Tracing

if TYPE_CHECKING:
    from mamba_gateway.endpoint_picker.server import PickerServer

log = structlog.get_logger("mambaserve.gateway")


LAST_BYTES_SECONDS = 5
"""How long connections may take to close at the end."""
FIRST_PROBE_SECONDS = 5.0
"""Longest wait for the first look at the engines before the gateway calls itself ready all the same."""


async def serve(
    settings: GatewaySettings,
    ready: Callable[[str], None],
    *,
    picker_ready: Callable[[int], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    rng: Random | None = None,
    tracing: Tracing = OFF,
) -> int:
    """Serve until `stop` or a signal; `ready` gets the URL once, `picker_ready` the endpoint picker's port
    before it. Returns 0, or 1 if requests were cut.

    Raises CannotListen when an address cannot be bound, KeyFileError for a key file that cannot be read or
    holds no key, CertificateError for a certificate that cannot be used, NoClusterAccess without a
    Kubernetes configuration, ModuleNotFoundError for a picker without its extra.
    """
    rng = rng or Random()
    keys = KeyFile(settings.api_key_file, "--api-key-file") if settings.api_key_file else None
    backend_keys = (
        KeyFile(settings.backend_key_file, "--backend-key-file") if settings.backend_key_file else None
    )
    bound = listen(settings.host, settings.port)
    pool = Pool(expected_model=settings.served_model_name)
    index = PrefixIndex()
    metrics = GatewayMetrics(pool.snapshot, index, tracing, lambda: pool.names)
    limits = settings.key_limits
    admission = Admission(
        settings.max_in_flight, settings.max_queue, settings.queue_timeout, time.monotonic,
        capacity=lambda model: engine_capacity(pool.snapshot(), model),
        weight=limits.weight,
        on_refused=lambda cause, key: metrics.refused.labels(cause, key).inc(),
    )  # fmt: skip
    pool.on_change = admission.dispatch
    backend_key = (lambda: backend_keys.first) if backend_keys else None
    async with (
        make_session(settings.connect_timeout, settings.idle_timeout) as session,
        upstream_connector(settings.connect_timeout, settings.idle_timeout) as connector,
    ):
        prober = Prober(
            session, pool, rng,
            interval=settings.probe_interval, timeout=settings.probe_timeout,
            key=backend_key,
        )  # fmt: skip
        try:
            async with (
                prefixes_followed(settings, session, index, backend_keys) as source,
                endpoints_followed(settings, prober.set_targets, source, rng) as wake,
                _limiter(settings, limits, metrics) as limiter,
            ):
                # A weight of 0 says that nobody wants to know what an engine can resume.
                wanted = settings.prefix_weight or limits.count_tokens
                texts = TextProcessors(session, pool, time.monotonic, backend_key) if wanted else None
                prompts = PromptReader(texts, metrics) if texts else None
                weights = RoutingWeights(settings.prefix_weight, settings.load_weight)
                router = Router(pool, metrics, rng, weights=weights, index=index)
                relay = Relay(
                    connector, pool, metrics, router,
                    hold_timeout=settings.hold_timeout, max_attempts=settings.max_attempts,
                    request_timeout=settings.request_timeout, wake=wake,
                    silence_timeout=settings.silence_timeout, probe_timeout=settings.probe_timeout,
                )  # fmt: skip
                prober.on_unanswered = relay.doubt
                proxy = ProxyEndpoint(
                    relay, admission, metrics, keys,
                    limiter=limiter, prompts=prompts, backend_keys=backend_keys,
                    max_body_bytes=settings.max_body_bytes,
                    body_timeout=settings.body_timeout, comment_interval=settings.comment_interval,
                )  # fmt: skip
                bodies = BodyBudget.with_room_for_one(settings.max_held_body_bytes, settings.max_body_bytes)
                metrics.buffered.set_function(lambda: bodies.held)
                warm_up = WarmUp(pool, index, texts, time.monotonic)
                routes = LocalRoutes(pool, admission, metrics, router.log, warm_up.missing)
                status = StatusEndpoint(
                    pool, admission, metrics, routes.readiness, EngineStatusClient(session, backend_key).fetch
                )
                app = make_app(routes, status, proxy, keys, bodies, tracing)
                app = with_cors(app, settings.cors_origin)
                hold = EndpointWait(pool, metrics, wake)
                parts = SharedParts(pool, metrics, admission, limiter, router, hold, prompts, bodies)
                async with (
                    _working(texts),
                    _picker(settings, parts, keys, backend_keys, tracing, picker_ready) as picker,
                ):
                    return await _serve_until_drained(
                        app,
                        bound,
                        pool,
                        admission,
                        proxy,
                        picker,
                        settings,
                        ready,
                        stop or asyncio.Event(),
                    )
        finally:
            await prober.close()
            bound.close()


@contextlib.asynccontextmanager
async def _limiter(
    settings: GatewaySettings, limits: KeyLimitTable, metrics: GatewayMetrics
) -> AsyncIterator[RateLimiter]:
    """Limits of keys hold inside, in Redis where there is one."""
    url = url_from(settings.redis_url, settings.redis_url_file) if limits.limited else None
    shared = None
    if url is not None:
        # The client is large, and only this count needs it.
        from mamba_gateway.admission.shared_allowance import SharedAllowances
        from mamba_prefix.redis_client import make_client

        shared = SharedAllowances(make_client(url, answer_seconds=LEAVE_SECONDS), settings.index_scope)
    limiter = RateLimiter(limits, metrics, time.monotonic, shared)
    task = asyncio.create_task(limiter.work(), name="limits of keys")
    try:
        yield limiter
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await limiter.close()


@contextlib.asynccontextmanager
async def _working(texts: TextProcessors | None) -> AsyncIterator[None]:
    """Tokenizers are kept up with inside."""
    if texts is None:
        yield
        return
    task = asyncio.create_task(texts.work(), name="tokenizers")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _picker(
    settings: GatewaySettings,
    parts: SharedParts,
    keys: KeyFile | None,
    backend_keys: KeyFile | None,
    tracing: Tracing,
    ready: Callable[[int], None],
) -> AsyncIterator["PickerServer | None"]:
    """The endpoint picker listens inside, where one is asked for."""
    if settings.endpoint_picker_port is None:
        yield None
        return
    # gRPC is large, and only the picker needs it.
    from mamba_gateway.endpoint_picker.server import make_picker, picker_listening

    picker = make_picker(settings, parts, keys, backend_keys, tracing)
    async with picker_listening(settings, picker, parts.pool) as listening:
        ready(listening.port)
        yield listening


async def _serve_until_drained(
    app: ASGIApp,
    bound: socket.socket,
    pool: Pool,
    admission: Admission,
    proxy: ProxyEndpoint,
    picker: "PickerServer | None",
    limits: GatewaySettings,
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> int:
    # At the end idle connections are closed at once; answers that are out need a moment to leave the buffers.
    server = HttpServer(
        app,
        last_bytes_seconds=LAST_BYTES_SECONDS,
        limits=limits.model_copy(update={"max_connections": limits.connections}),
        more_files=limits.max_in_flight,
    )
    loop = asyncio.get_running_loop()
    forced = asyncio.Event()

    def on_signal() -> None:
        (forced if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="http server")
    try:
        # A client that asks for the models right after the ready line should find them.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PROBE_SECONDS):
                while not (pool.synced or stop.is_set() or serving.done()):
                    await _first_done(serving, stop.wait(), pool.changed())
        ready(url_of(bound))
        await _first_done(serving, stop.wait())
        deadline = loop.time() + limits.drain_timeout
        if limits.drain_quiet:
            log.info("leaving", quiet=limits.drain_quiet, timeout=limits.drain_timeout)
            server.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limits.drain_timeout * LEAVE_SHARE):
                    quiet = admission.arrivals.none_for(limits.drain_quiet, lambda: admission.admitted > 0)
                    await _first_done(serving, forced.wait(), quiet)
        admission.draining = True
        if picker is not None:
            await picker.drain()
        log.info("draining", requests=admission.admitted, timeout=limits.drain_timeout)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await _first_done(serving, forced.wait(), admission.idle())
        if cancelled := admission.admitted:  # streams of the picker end with it
            proxy.cancel_running()
            log.warning("requests cancelled", requests=cancelled)
        server.should_exit = True
        await serving
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return 1 if cancelled else 0


async def _first_done(serving: "asyncio.Task[None]", *others: "object") -> None:
    waiting = [asyncio.ensure_future(other) for other in others]  # type: ignore[call-overload]
    try:
        await asyncio.wait((serving, *waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
