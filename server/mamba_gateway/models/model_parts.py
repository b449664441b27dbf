"""`ModelParts`: the parts of a gateway that serve one model, with the tasks and connections that they need.

`process.gateway` creates them once for a gateway of one model; the set of models creates them for each model
that joins. Large clients (Kubernetes, Redis) are imported only if the settings require them.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp

from mamba_edge.api_keys import KeyFile
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.allowance import LEAVE_SECONDS
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.api.local_routes import WarmUp
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.endpoints.probe import Prober
from mamba_gateway.key_limits import KeyLimitTable
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.models.endpoint_source import endpoints_followed, fan_out
from mamba_gateway.prefix_index.source import Sink, prefixes_followed
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.relay.relay import Relay
from mamba_gateway.relay.request_lane import RequestLane
from mamba_gateway.routing.router import EndpointWait, Router
from mamba_gateway.routing.scoring import RoutingWeights
from mamba_gateway.settings import GatewaySettings
from mamba_gateway.upstream.connector import make_session, upstream_connector
from mamba_gateway.upstream.silence import LivenessChecks
from mamba_gateway.usage.usage_reader import TakeUsage, UsageReader
from mamba_prefix.prefix_index import PrefixIndex
from mamba_prefix.redis_url import url_from

MetricsOf = Callable[[Pool, PrefixIndex], GatewayMetrics]
"""Returns the metrics of a gateway whose model has this pool and this copy of the prefix index."""


@dataclass(frozen=True, slots=True)
class SharedCounts:
    """The Redis in which several gateways count the use of one model by API keys together."""

    url: str
    scope: str
    """Name under which they count."""

    @classmethod
    def of(cls, settings: GatewaySettings) -> "SharedCounts | None":
        """Return the Redis of the settings; None if they name none. Raises BadRedisUrl."""
        url = url_from(settings.redis_url, settings.redis_url_file)
        return None if url is None else cls(url, settings.index_scope)


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The running parts of a gateway that serve one model, such as its pool and its router."""

    pool: Pool
    index: PrefixIndex
    metrics: GatewayMetrics
    lane: RequestLane
    router: Router
    hold: EndpointWait
    warm_up: WarmUp
    wake: Callable[[], None]
    """Requests an engine of a model that was scaled to zero."""
    session: aiohttp.ClientSession


def engine_key_of(keys: KeyFile | None) -> Callable[[], bytes] | None:
    """Return a function that returns the key for engines; None = no key is sent."""
    return None if keys is None else lambda: keys.first


@contextlib.asynccontextmanager
async def model_running(
    settings: GatewaySettings,
    engine_keys: KeyFile | None,
    rng: Random,
    metrics_of: MetricsOf,
    on_change: Callable[[], None] | None = None,
    take_usage: TakeUsage | None = None,
    counts: SharedCounts | None = None,
) -> AsyncIterator[ModelParts]:
    """Create the parts of a model, whose tasks run for the duration of the block.

    `on_change` is called after each change of the engines or their reports, and `take_usage` with each report
    of an engine about the use of its keys. `metrics_of` returns the metrics of a pool and its index. The
    limits of keys are counted in `counts`; by default in the Redis of the settings.

    Raises NoClusterAccess without a Kubernetes configuration, and BadRedisUrl for an unusable file.
    """
    limits, index, engine_key = settings.key_limits, PrefixIndex(), engine_key_of(engine_keys)

    def dispatch() -> None:
        admission.dispatch()  # assigned below, before the pool gets its engines
        if on_change is not None:
            on_change()

    pool = Pool(
        expected_model=settings.served_model_name,
        on_change=dispatch,
        expected_adapters=settings.adapter_name,
    )
    metrics = metrics_of(pool, index)
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
        source = await enter(prefixes_followed(settings, session, index, engine_keys))
        targets: Sink = prober.set_targets
        if take_usage is not None:
            reader = UsageReader(session, take_usage, engine_key)
            stack.push_async_callback(reader.close)
            targets = fan_out(targets, reader.set_targets)
        wake = await enter(endpoints_followed(settings, targets, source, rng))
        limiter = await enter(_limiter(limits, metrics, counts or SharedCounts.of(settings)))
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
            hand_over_tokens=settings.hand_over_tokens, deployment=settings.deployment or "",
            texts=texts,
        )  # fmt: skip
        stack.push_async_callback(relay.close)
        if texts is not None:
            await enter(running(texts.work(), "tokenizers"))
        yield ModelParts(
            pool,
            index,
            metrics,
            RequestLane(
                relay,
                admission,
                limiter,
                prompts,
                engine_keys,
                prices=settings.prices,
                ledger_name=settings.served_model_name,
            ),
            router,
            EndpointWait(pool, metrics, wake),
            WarmUp(pool, index, texts, time.monotonic),
            wake,
            session,
        )


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None], name: str) -> AsyncIterator[None]:
    """Run `work` as a task for the duration of the block."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def _limiter(
    limits: KeyLimitTable, metrics: GatewayMetrics, counts: SharedCounts | None
) -> AsyncIterator[RateLimiter]:
    """Enforce the limits of keys for the duration of the block, counted in Redis if there is one."""
    shared = None
    if counts is not None and limits.limited:
        from mamba_gateway.admission.shared_allowance import SharedAllowances
        from mamba_prefix.redis_client import make_client

        shared = SharedAllowances(make_client(counts.url, answer_seconds=LEAVE_SECONDS), counts.scope)
    limiter = RateLimiter(limits, metrics, time.monotonic, shared)
    try:
        async with running(limiter.work(), "limits of keys"):
            yield limiter
    finally:
        await limiter.close()
