"""Traces, steered by the standard OTEL_* variables alone: without them nothing is recorded or sent.

The W3C `traceparent` of a request is read and passed on in any case, so a trace through gateway, API and
engine stays whole. The SDK and its exporter are optional packages (extra "telemetry").
"""

import os
from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context

from mamba_telemetry.logs import get_logger

_SWITCHES = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether the standard variables ask for traces."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "").lower() == "none":
        return False
    return any(environ.get(name) for name in _SWITCHES)


def set_up_traces(*, process: str) -> bool:
    """Install the SDK with an OTLP exporter if the OTEL_* variables ask for it; whether it did."""
    if not wanted(os.environ):
        return False
    log = get_logger(__name__)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("traces_unavailable", missing=error.name, remedy="install mambaserve[telemetry]")
        return False
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over this default: create() merges them last.
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": process})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    log.info("traces_on", service=resource.attributes.get("service.name"))
    return True


def incoming(headers: Mapping[str, str]) -> Context:
    """The trace a caller continues; an empty context when its header is missing or malformed."""
    if "traceparent" not in headers:
        return Context()
    return propagate.extract({key: headers[key] for key in ("traceparent", "tracestate") if key in headers})


def trace_id(span: trace.Span) -> str | None:
    """32 hex digits, or None outside of any trace."""
    context = span.get_span_context()
    return trace.format_trace_id(context.trace_id) if context.is_valid else None


def traceparent(span: trace.Span) -> str:
    """The header to pass on; "" outside of any trace."""
    if not span.get_span_context().is_valid:
        return ""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent", "")
