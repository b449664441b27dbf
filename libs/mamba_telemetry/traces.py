"""Sets up tracing from the standard OTEL_* variables and the settings, which take precedence.

Without an endpoint nothing is recorded or sent. The SDK and its exporters are optional packages (extra
"telemetry").
"""

import logging
import os
import socket
from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from mamba_telemetry.logs import get_logger
from mamba_telemetry.tracing import OFF, Tracing

log = get_logger(__name__)

GRPC, HTTP = "grpc", "http/protobuf"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_REMEDY = "install mambaserve[telemetry]"
_REPAIR = "pip install --force-reinstall --no-deps opentelemetry-proto: another package overwrote its files"


class TraceSettings(Protocol):
    """Settings of traces in a settings model; None = as the standard variables say."""

    @property
    def otlp_endpoint(self) -> str | None: ...
    @property
    def otlp_protocol(self) -> str | None: ...
    @property
    def trace_sampling(self) -> float | None: ...
    @property
    def slow_request(self) -> float: ...


def enabled(environ: Mapping[str, str]) -> bool:
    """Return whether the standard variables request traces.

    They do so with an exporter or an endpoint, unless they switch the SDK off or name an exporter other than
    otlp.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").lower()
    if exporter in ("", "otlp"):
        return bool(exporter) or any(environ.get(name) for name in _ENDPOINTS)
    if exporter != "none":
        log.warning("traces_unavailable", exporter=exporter, remedy="OTEL_TRACES_EXPORTER is otlp or none")
    return False


def apply_settings(choices: TraceSettings, environ: MutableMapping[str, str]) -> None:
    """Write the process's own settings into the standard OTEL_* variables of `environ`.

    OpenTelemetry then reads variables alone. A setting replaces the variable of the same meaning; a setting
    that is None leaves the variable as it is.
    """
    if choices.otlp_endpoint is not None:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = choices.otlp_endpoint
        environ.pop("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", None)
    if choices.otlp_protocol is not None:
        environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = choices.otlp_protocol
        environ.pop("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", None)
    if choices.trace_sampling is not None:
        environ["OTEL_TRACES_SAMPLER"] = "parentbased_traceidratio"
        environ["OTEL_TRACES_SAMPLER_ARG"] = repr(choices.trace_sampling)


def set_up_traces(choices: TraceSettings, *, process: str) -> Tracing:
    """Return the tracing of this process; `OFF` if nobody requests it or it is unavailable.

    `process` names the service unless the variables do.
    """
    apply_settings(choices, os.environ)
    if not enabled(os.environ):
        return OFF
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or HTTP
    )
    if protocol not in (HTTP, GRPC):
        remedy = f"OTEL_EXPORTER_OTLP_PROTOCOL is {HTTP} or {GRPC}"
        log.warning("traces_unavailable", protocol=protocol, remedy=remedy)
        return OFF
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from mamba_telemetry.span_maker import SpanMaker
        from mamba_telemetry.span_queue import SpanQueue

        exporter = _exporter(protocol)
    except ImportError as error:
        overwritten = (error.name or "").startswith("opentelemetry.proto.")
        log.warning("traces_unavailable", missing=error.name, remedy=_REPAIR if overwritten else _REMEDY)
        return OFF
    # The exporters log each failure; the queue logs when failures begin and end.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over these: create() merges them last.
    service = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": process}
    resource = Resource.create({"service.instance.id": f"{socket.gethostname()}:{os.getpid()}", **service})
    queue = SpanQueue(
        exporter,
        SpanMaker(resource),
        capacity=_number("OTEL_BSP_MAX_QUEUE_SIZE", 2048),
        batch=_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512),
        delay=_number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
    )
    # The SDK reads OTEL_TRACES_SAMPLER only when it creates a provider.
    sampler = TracerProvider(shutdown_on_exit=False).sampler
    log.info("traces_on", service=resource.attributes.get("service.name"), protocol=protocol)
    return Tracing(sampler, queue, slow_after=choices.slow_request)


def _exporter(protocol: str) -> Any:
    if protocol == GRPC:
        # The gRPC library writes to standard error by itself, whatever the log level.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _number(name: str, default: int) -> int:
    """Return a standard variable that is a whole number above 0, else `default`."""
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and int(text) else default
