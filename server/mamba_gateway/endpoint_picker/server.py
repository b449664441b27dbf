"""The gRPC server of the picker: port, TLS, health, and one task for each stream. It does no routing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from mamba_api.names import authority
from mamba_edge.api_keys import KeyFile
from mamba_edge.errors import Unauthorized
from mamba_edge.listener import CannotListen
from mamba_gateway.endpoint_picker.certificate import CertificateFiles, credentials
from mamba_gateway.endpoint_picker.ext_proc import METHOD, SERVICE, ProcessingRequest, ProcessingResponse
from mamba_gateway.endpoint_picker.picker import EndpointPicker, SharedParts
from mamba_gateway.endpoint_picker.picker_metrics import PickerMetrics
from mamba_gateway.endpoints.pool import Pool
from mamba_gateway.settings import GatewaySettings
from mamba_telemetry.tracing import OFF, Tracing

log = structlog.get_logger("mambaserve.gateway")

UNKNOWN_PROXY = (
    "this endpoint picker serves proxies that send a token of its --endpoint-picker-token-file: set "
    "authorization: Bearer TOKEN in the initial_metadata of the proxy's grpc_service"
)
READINESS, LIVENESS = "readiness", "liveness"
MESSAGE_MARGIN = 1024 * 1024
"""Maximum size in bytes of a message without the body in it."""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class PickerServer:
    """Picker that listens on `port`."""

    def __init__(self, server: grpc.aio.Server, port: int, pool: Pool) -> None:
        self.port = port
        self._server, self._pool = server, pool
        self._health = health.aio.HealthServicer()
        self._draining = False
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def follow_readiness(self) -> None:
        """Publish the health status whenever the pool changes, until the task is cancelled."""
        while True:
            await self._publish_health()
            await self._pool.changed()

    async def drain(self) -> None:
        """Report the status not serving from now on; open streams continue."""
        self._draining = True
        await self._publish_health()

    async def _publish_health(self) -> None:
        ready = _SERVING if self._pool.synced and not self._draining else _NOT_SERVING
        await self._health.set(LIVENESS, _SERVING)
        for name in ("", READINESS, SERVICE):
            await self._health.set(name, ready)


def _service_of(picker: EndpointPicker, tokens: KeyFile | None) -> grpc.GenericRpcHandler:
    async def process(request_iterator: Any, context: Any) -> None:
        if tokens is not None:
            # Checked before anything of the request is read: the response to a proxy contains the engines'
            # key.
            token = dict(context.invocation_metadata() or ()).get("authorization", "")
            try:
                tokens.check(token.encode() if isinstance(token, str) else token)
            except Unauthorized:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, UNKNOWN_PROXY)
        await picker.process(aiter(request_iterator), context.write)

    method = grpc.stream_stream_rpc_method_handler(
        process, ProcessingRequest.FromString, ProcessingResponse.SerializeToString
    )
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: method})


def make_picker(
    settings: GatewaySettings,
    parts: SharedParts,
    keys: KeyFile | None,
    backend_keys: KeyFile | None,
    tracing: Tracing = OFF,
) -> EndpointPicker:
    """Return a picker that shares `parts`, and so all limits, with its gateway.

    `keys` are the API keys of clients and `backend_keys` those for engines; None if none are required.
    """
    name = settings.inference_pool or settings.deployment or "mambaserve"
    metrics = PickerMetrics(parts.metrics, name, settings.namespace or "", parts.pool.snapshot)
    return EndpointPicker(
        parts, metrics,
        keys=keys, backend_keys=backend_keys,
        max_body_bytes=settings.max_body_bytes, body_timeout=settings.body_timeout,
        hold_timeout=settings.hold_timeout, most_addresses=settings.max_attempts, tracing=tracing,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def picker_listening(
    settings: GatewaySettings, picker: EndpointPicker, pool: Pool
) -> AsyncIterator[PickerServer]:
    """Serve for the duration of the block. Raises CannotListen, CertificateError, KeyFileError."""
    assert settings.endpoint_picker_port is not None
    server = grpc.aio.server(
        options=(
            (
                "grpc.so_reuseport",
                0,
            ),  # a second process must not get half of the streams
            ("grpc.max_receive_message_length", settings.max_body_bytes + MESSAGE_MARGIN),
        )
    )
    token_file = settings.endpoint_picker_token_file
    tokens = KeyFile(token_file, "--endpoint-picker-token-file") if token_file else None
    if tokens is None and settings.backend_key_file is not None:
        log.warning(
            "the endpoint picker sends the engines' key to every client that reaches its port: let the proxy "
            "alone reach it, or give --endpoint-picker-token-file"
        )
    server.add_generic_rpc_handlers((_service_of(picker, tokens),))
    address = authority(settings.host, settings.endpoint_picker_port)
    try:
        if settings.endpoint_picker_tls:
            files = None
            if settings.endpoint_picker_certificate and settings.endpoint_picker_key:
                files = CertificateFiles(settings.endpoint_picker_certificate, settings.endpoint_picker_key)
            port = server.add_secure_port(address, credentials(files, "mambaserve-endpoint-picker"))
        else:
            port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {address}: {error}", "--endpoint-picker-port") from error
    listening = PickerServer(server, port, pool)
    await server.start()
    task = asyncio.create_task(listening.follow_readiness(), name="picker readiness")
    log.info("endpoint picker", address=authority(settings.host, port), tls=settings.endpoint_picker_tls)
    try:
        yield listening
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(0)
