"""The gateway's process: serves until SIGTERM or SIGINT, finishes its requests, and returns the exit code.

Called by `mambaserve gateway`; `gateway` creates the parts. A second signal, or the end of the drain time,
aborts the requests that are still running.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from random import Random

import structlog

from mamba_edge.connection.http_server import HttpServer
from mamba_edge.exchange.request_arrivals import LEAVE_SHARE
from mamba_edge.listener import listen, url_of
from mamba_gateway.process.gateway import Gateway, KeyFiles, built
from mamba_gateway.settings import GatewaySettings
from mamba_telemetry.tracing import OFF, Tracing

log = structlog.get_logger("mambaserve.gateway")

LAST_BYTES_SECONDS = 5
"""Longest time, in seconds, that connections may take to close at the end."""
FIRST_PROBE_SECONDS = 5.0
"""Longest time, in seconds, to wait for the first probes of the engines before the gateway reports that it is
ready."""


async def serve(
    settings: GatewaySettings,
    ready: Callable[[str], None],
    *,
    picker_ready: Callable[[int], None] = lambda _: None,
    stop: asyncio.Event | None = None,
    rng: Random | None = None,
    tracing: Tracing = OFF,
) -> int:
    """Serve until `stop` is set or a signal arrives. Return 0, or 1 if requests were aborted.

    `ready` is called once with the URL of the gateway, and before that `picker_ready` with the port of the
    endpoint picker.

    Raises CannotListen when an address cannot be bound, KeyFileError for a key file that cannot be read or
    contains no key, ModelsFileError for an unusable file of models, CertificateError for a certificate that
    cannot be used, NoClusterAccess without a Kubernetes configuration, and ModuleNotFoundError for a picker
    without its extra.
    """
    keys = KeyFiles.of(settings)
    bound = listen(settings.host, settings.port)
    try:
        async with built(settings, keys, tracing, rng or Random(), picker_ready) as gateway:
            return await _serve_until_drained(gateway, bound, settings, ready, stop or asyncio.Event())
    finally:
        bound.close()


async def _serve_until_drained(
    gateway: Gateway,
    bound: socket.socket,
    settings: GatewaySettings,
    ready: Callable[[str], None],
    stop: asyncio.Event,
) -> int:
    # At the end idle connections are closed at once; complete answers need a moment to leave the buffers.
    server = HttpServer(
        gateway.app,
        last_bytes_seconds=LAST_BYTES_SECONDS,
        limits=settings.model_copy(update={"max_connections": gateway.max_connections}),
        more_files=settings.max_in_flight,
    )
    loop = asyncio.get_running_loop()
    forced = asyncio.Event()

    def on_signal() -> None:
        (forced if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(server.serve(sockets=[bound]), name="http server")
    try:
        await _first_probes(gateway, serving, stop)
        ready(url_of(bound))
        await _first_done(serving, stop.wait())
        cut = await _drain(gateway, server, serving, settings, forced)
        server.should_exit = True
        await serving
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return 1 if cut else 0


async def _first_probes(gateway: Gateway, serving: "asyncio.Task[None]", stop: asyncio.Event) -> None:
    """Wait for the first probes of the engines, so that the list of models is complete from the start.

    The wait ends after `FIRST_PROBE_SECONDS`, and when the gateway stops.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(FIRST_PROBE_SECONDS):
            while not (gateway.engines.synced or stop.is_set() or serving.done()):
                await _first_done(serving, stop.wait(), gateway.engines.changed())


async def _drain(
    gateway: Gateway,
    server: HttpServer,
    serving: "asyncio.Task[None]",
    settings: GatewaySettings,
    forced: asyncio.Event,
) -> int:
    """Finish the running requests within the drain time; return the number of requests that were aborted.

    `serving` is the task that accepts connections. `forced` is set if the drain has to end at once.
    """
    admission, loop = gateway.admission, asyncio.get_running_loop()
    deadline = loop.time() + settings.drain_timeout
    if settings.drain_quiet:
        log.info("leaving", quiet=settings.drain_quiet, timeout=settings.drain_timeout)
        server.leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_timeout * LEAVE_SHARE):
                quiet = admission.arrivals.none_for(settings.drain_quiet, lambda: admission.admitted > 0)
                await _first_done(serving, forced.wait(), quiet)
    admission.draining = True
    if gateway.picker is not None:
        await gateway.picker.drain()
    log.info("draining", requests=admission.admitted, timeout=settings.drain_timeout)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            await _first_done(serving, forced.wait(), admission.idle())
    cut = admission.admitted
    if cut:  # this also ends the streams of the picker
        gateway.proxy.cancel_running()
        log.warning("requests cancelled", requests=cut)
    return cut


async def _first_done(serving: "asyncio.Task[None]", *others: "object") -> None:
    waiting = [asyncio.ensure_future(other) for other in others]  # type: ignore[call-overload]
    try:
        await asyncio.wait((serving, *waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
