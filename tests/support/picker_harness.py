"""An endpoint picker that listens here, and a proxy's hand on it: real gRPC, engines by name alone."""

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from random import Random
from typing import Any

import grpc

from mamba_edge.api_keys import KeyFile
from mamba_edge.exchange.request_body import BodyBudget
from mamba_gateway.admission.admission import Admission
from mamba_gateway.admission.rate_limiter import RateLimiter
from mamba_gateway.endpoint_picker.ext_proc import (
    METHOD,
    SERVICE,
    HeaderMap,
    HeaderValue,
    HttpBody,
    HttpHeaders,
    HttpTrailers,
    Metadata,
    ProcessingMode,
    ProcessingRequest,
    ProcessingResponse,
    ProtocolConfiguration,
    Struct,
)
from mamba_gateway.endpoint_picker.picker import SharedParts
from mamba_gateway.endpoint_picker.server import make_picker, picker_listening
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompts.prompt_reader import PromptReader
from mamba_gateway.prompts.text_processors import TextProcessors
from mamba_gateway.routing.router import EndpointWait, Router
from mamba_gateway.settings import GatewaySettings
from mamba_telemetry.tracing import OFF, Tracing

ENGINES = ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
DUPLEX, BUFFERED = ProcessingMode.FULL_DUPLEX_STREAMED, ProcessingMode.BUFFERED
JSON = b'{"model": "m", "prompt": "x"}'
LONG = json.dumps({"model": "m", "prompt": "the same beginning " * 40}).encode()
Pairs = Iterable[tuple[str, str]]


def header_map(pairs: Pairs) -> HeaderMap:
    return HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in pairs])


def metadata(namespace: str, **values: Any) -> Metadata:
    struct = Struct()
    struct.update({key.replace("_", "-"): value for key, value in values.items()})
    return Metadata(filter_metadata={namespace: struct})


class Stream:
    """Stream between a proxy and the picker for one request."""

    def __init__(self, channel: grpc.aio.Channel, *shown: tuple[str, str]) -> None:
        process = channel.stream_stream(
            f"/{SERVICE}/{METHOD}", ProcessingRequest.SerializeToString, ProcessingResponse.FromString
        )
        self.call = process(metadata=shown)

    async def headers(
        self, *more: tuple[str, str], path: str = "/v1/completions", mode: int | None = DUPLEX, **fields: Any
    ) -> None:
        pairs = ((":method", "POST"), (":path", path), *more)
        message = ProcessingRequest(
            request_headers=HttpHeaders(headers=header_map(pairs), end_of_stream=fields.pop("ended", False)),
            **fields,
        )
        if mode is not None:
            config = ProtocolConfiguration(request_body_mode=mode, response_body_mode=mode)
            message.protocol_config.CopyFrom(config)
        await self.call.write(message)

    async def body(self, *parts: bytes, ends: bool = True) -> None:
        for number, part in enumerate(parts, 1):
            body = HttpBody(body=part, end_of_stream=ends and number == len(parts))
            await self.call.write(ProcessingRequest(request_body=body))

    async def trailers(self) -> None:
        await self.call.write(ProcessingRequest(request_trailers=HttpTrailers()))

    async def answer_headers(
        self, *more: tuple[str, str], status: int = 200, **fields: Any
    ) -> ProcessingResponse:
        pairs = ((":status", str(status)), *more)
        headers = HttpHeaders(headers=header_map(pairs))
        await self.call.write(ProcessingRequest(response_headers=headers, **fields))
        return await self.read()

    async def answer_body(self, *parts: bytes) -> list[ProcessingResponse]:
        got = []
        for number, part in enumerate(parts, 1):
            body = HttpBody(body=part, end_of_stream=number == len(parts))
            await self.call.write(ProcessingRequest(response_body=body))
            got.append(await self.read())
        return got

    async def read(self) -> ProcessingResponse:
        got = await self.call.read()
        assert got is not grpc.aio.EOF, "the picker ended the stream"
        return got

    async def ends(self) -> None:
        """End the stream like a proxy whose request has ended."""
        await self.call.done_writing()
        assert await self.call.read() is grpc.aio.EOF

    async def picked(self, body: bytes = JSON, *more: tuple[str, str], **head: Any) -> list[str]:
        """Send a request; the addresses that it may go to, best first."""
        await self.headers(*more, **head)
        await self.body(body)
        reply = await self.read()
        assert reply.HasField("request_headers"), reply
        for _ in range(max(1, -(-len(body) // 62_000))):
            assert (await self.read()).HasField("request_body")
        return addresses(reply)


def addresses(found: ProcessingResponse) -> list[str]:
    """Return the destination, on which header and metadata agree."""
    reply = found.request_headers if found.HasField("request_headers") else found.request_body
    header = put(reply)["x-gateway-destination-endpoint"]
    metadata = found.dynamic_metadata["envoy.lb"]["x-gateway-destination-endpoint"]
    assert header == metadata
    return header.split(",")


def put(reply: Any) -> dict[str, str]:
    """Return the headers that a reply sets; each in the place of the one before."""
    options = reply.response.header_mutation.set_headers
    assert all(option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD for option in options)
    return {option.header.key: option.header.raw_value.decode() for option in options}


def refused(found: Any) -> tuple[int, str, dict[str, str]]:
    """Return the status, code and headers of an answer in the place of an engine's."""
    assert found.HasField("immediate_response"), found
    immediate = found.immediate_response
    error = json.loads(immediate.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    headers = {o.header.key: o.header.raw_value.decode() for o in immediate.headers.set_headers}
    assert headers["content-type"] == "application/json"
    return immediate.status.code, error["code"], headers


class PickerHarness:
    """A picker over a pool; `stream` to speak with it."""

    def __init__(
        self,
        *,
        keys: Path | None = None,
        backend_keys: Path | None = None,
        tracing: Tracing = OFF,
        **options: Any,
    ) -> None:
        self._tracing = tracing
        limits = {"hold_timeout": 0.0, "endpoint_picker_tls": False, "endpoint_picker_port": 0, **options}
        places, queue = limits.pop("places", 1000), limits.pop("queue", 0)
        index, texts = limits.pop("index", None), limits.pop("texts", None)
        self.settings = GatewaySettings(backend=("http://10.0.0.1:8000",), host="127.0.0.1", **limits)
        self.pool = Pool()
        self.metrics = GatewayMetrics(self.pool.snapshot)
        self.router = Router(self.pool, self.metrics, Random(3), index=index)
        self.admission = Admission(places, queue, self.settings.queue_timeout, time.monotonic)
        self.bodies = BodyBudget(limits.get("max_held_body_bytes", 1 << 30))
        self.wakes = 0
        texts = texts or TextProcessors(None, self.pool, time.monotonic)  # type: ignore[arg-type] # it never asks an engine
        hold = EndpointWait(self.pool, self.metrics, self._wake)
        prompts = PromptReader(texts, self.metrics)
        limiter = RateLimiter(self.settings.key_limits, self.metrics, time.monotonic)
        self.parts = SharedParts(
            self.pool, self.metrics, self.admission, limiter, self.router, hold, prompts, self.bodies
        )
        self._keys = (
            KeyFile(keys, "--api-key-file") if keys else None,
            KeyFile(backend_keys, "--backend-key-file") if backend_keys else None,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def engines(self, *addresses: str, **report: Any) -> None:
        """Make these the engines; the earlier ones are less loaded."""
        self.pool.set_targets(Target(f"http://{address}", f"pod-{address}") for address in addresses)
        for place, address in enumerate(addresses):
            report_fields = {"ready": True, "running": 10 * place, "models": ({"id": "m"},), **report}
            self.pool.report(f"http://{address}", ProbeReport(**report_fields))

    @contextlib.asynccontextmanager
    async def running(
        self, certificate: bytes | None = None, name: str = ""
    ) -> AsyncIterator["PickerHarness"]:
        """Listen for the length of the block; with `certificate` the proxy speaks TLS and trusts that one."""
        picker = make_picker(self.settings, self.parts, *self._keys, self._tracing)
        async with picker_listening(self.settings, picker, self.pool) as self.server:
            target = f"127.0.0.1:{self.server.port}"
            if certificate is None:
                self.channel = grpc.aio.insecure_channel(target)
            else:
                trusted = grpc.ssl_channel_credentials(certificate)
                self.channel = grpc.aio.secure_channel(
                    target, trusted, options=(("grpc.ssl_target_name_override", name),)
                )
            async with self.channel:
                yield self

    def stream(self) -> Stream:
        """Open the stream of a proxy's new request."""
        return Stream(self.channel)

    @property
    def in_flight(self) -> list[int]:
        return [endpoint.in_flight for endpoint in self.pool.snapshot()]

    def is_empty(self) -> bool:
        """Return whether the picker holds nothing of any request."""
        held = (self.admission.admitted, self.admission.in_flight, self.bodies.held)
        return held == (0, 0, 0) and not any(self.in_flight)

    def sample(self, series: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(series, labels)
