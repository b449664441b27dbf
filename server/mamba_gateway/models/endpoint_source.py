"""Source of the gateway's list of engines: its command line, or the Kubernetes API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import UTC, datetime
from random import Random
from urllib.parse import urlsplit

from mamba_gateway.endpoints.pool import Target
from mamba_gateway.prefix_index.source import PrefixSource, Sink
from mamba_gateway.settings import GatewaySettings


@contextlib.asynccontextmanager
async def endpoints_followed(
    settings: GatewaySettings, probed: Sink, prefixes: PrefixSource, rng: Random
) -> AsyncIterator[Callable[[], None]]:
    """Keep the list of engines up to date in the block; yield a function that requests an engine."""
    sink = fan_out(probed, prefixes.set_targets)
    if settings.deployment is None:
        sink(Target(url, urlsplit(url).netloc.rpartition("@")[2]) for url in settings.backend)
        yield lambda: None
        return
    # The client of Kubernetes is large, so it is imported only where it is used.
    from mamba_gateway.endpoints.discovery import watch_engines
    from mamba_gateway.operator_note import IndexReporter, OperatorNote, Waker
    from mamba_kube.access import connected, load_access

    access = await load_access(settings.kubeconfig)
    namespace = settings.namespace or access.namespace
    async with connected(access) as server:
        waker = Waker(server, namespace, settings.deployment, lambda: datetime.now(UTC))
        work = [watch_engines(server, namespace, settings.deployment, sink, rng), waker.work()]
        if prefixes.trouble is not None:
            note = OperatorNote(server, namespace, settings.deployment)
            work.append(IndexReporter(note, prefixes.trouble, lambda: datetime.now(UTC)).work())
        tasks = [asyncio.create_task(coroutine) for coroutine in work]
        try:
            yield waker.request
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def fan_out(first: Sink, second: Sink) -> Sink:
    """Return a function that passes the engines on to `first` and to `second`."""

    def send(targets: Iterable[Target]) -> None:
        items = tuple(targets)
        first(items)
        second(items)

    return send
