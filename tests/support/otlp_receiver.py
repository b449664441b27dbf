"""A real receiver of spans, over HTTP or gRPC: decodes what comes and keeps it."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from mamba_api.names import authority


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it came over the wire."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin: int
    """Nanoseconds since 1970."""
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[str, ...]
    """Trace ids."""
    failed: bool


@dataclass
class Received:
    """Everything that came."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)

    def take(self, request: Any) -> None:
        self.raw.append(request.SerializeToString())
        for of_resource in request.resource_spans:
            service = _attributes(of_resource.resource.attributes)["service.name"]
            self.spans += [
                _span(service, span) for of_scope in of_resource.scope_spans for span in of_scope.spans
            ]

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.begin)


@contextmanager
def http_receiver(host: str = "127.0.0.1") -> Iterator[Received]:
    """Run a receiver at a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
            received.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Listener((host, 0), Handler)
    received = Received(f"http://{authority(host, server.server_address[1])}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_receiver(host: str = "127.0.0.1") -> Iterator[Received]:
    """Run a receiver at a free port of this machine."""

    class Service(TraceServiceServicer):
        def Export(self, request: Any, _: Any) -> Any:
            received.take(request)
            return ExportTraceServiceResponse()

    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        add_TraceServiceServicer_to_server(Service(), server)
        received = Received(f"http://{authority(host, server.add_insecure_port(authority(host, 0)))}")
        server.start()
        try:
            yield received
        finally:
            server.stop(None).wait()


def waterfall(spans: list[ReceivedSpan], width: int = 48) -> str:
    """Return one trace as text: a line a span, children below their parents, with the time it took."""
    begin, end = min(span.begin for span in spans), max(span.end for span in spans)
    scale = width / max(1, end - begin)
    span_ids = {span.span_id for span in spans}
    lines: list[str] = []

    def show(span: ReceivedSpan, depth: int) -> None:
        start = min(width - 1, int((span.begin - begin) * scale))
        bar = max(1, round((span.end - span.begin) * scale))
        drawn = (" " * start + "█" * bar)[:width].ljust(width)
        label = "  " * depth + span.name
        lines.append(f"{label:<38} {drawn} {(span.end - span.begin) / 1e6:9.2f} ms")
        below = sorted(
            (each for each in spans if each.parent_id == span.span_id), key=lambda each: each.begin
        )
        for each in below:
            show(each, depth + 1)

    for root in sorted(spans, key=lambda span: span.begin):
        if root.parent_id not in span_ids:
            show(root, 0)
    return "\n".join(line.rstrip() for line in lines)


def _span(service: str, span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=tuple(event.name for event in span.events),
        links=tuple(link.trace_id.hex() for link in span.links),
        failed=span.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    read: dict[str, Callable[[Any], Any]] = {
        "string_value": str, "bool_value": bool, "int_value": int, "double_value": float,
        "array_value": lambda value: [_value(each, read) for each in value.values],
    }  # fmt: skip
    return {pair.key: _value(pair.value, read) for pair in pairs}


def _value(value: Any, read: dict[str, Callable[[Any], Any]]) -> Any:
    kind = value.WhichOneof("value")
    return read[kind](getattr(value, kind))
