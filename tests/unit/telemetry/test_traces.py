"""Tracing as the standard variables and the settings ask for it."""

import os
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import structlog

from mamba_settings.trace_settings import TraceSettings
from mamba_telemetry import span_queue, traces
from mamba_telemetry.request_trace import RequestTrace
from mamba_telemetry.tracing import OFF, Tracing

NOTHING = TraceSettings()


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_only_the_standard_variables_turn_them_on(environ: dict[str, str], wanted: bool) -> None:
    assert traces.enabled(environ) is wanted


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith("OTEL_"):
                del os.environ[name]
        yield


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the recorded setup: exporter, how spans are created, options. Nothing is sent."""
    made: list[Any] = []

    class Queue:
        counts = span_queue.SpanCounts()

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.exporter, self.make = arguments
            self.options = options
            made.append(self)

    monkeypatch.setattr(span_queue, "SpanQueue", Queue)
    yield made
    for queue in made:
        queue.exporter.shutdown()


def test_without_an_endpoint_nothing_is_set_up(queues: list[Any]) -> None:
    assert traces.set_up_traces(NOTHING, process="api") is OFF
    assert queues == []


@pytest.mark.parametrize(
    ("environ", "service"),
    [
        ({}, "api"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}, "api"),
    ],
)
def test_the_process_names_the_service_unless_the_variables_do(
    environ: dict[str, str], service: str, queues: list[Any]
) -> None:
    os.environ.update(environ, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert traces.set_up_traces(NOTHING, process="api").on
    [queue] = queues
    [span] = queue.make(RequestTrace("x", recording=True), 1.0, "sampled")
    assert span.resource.attributes["service.name"] == service
    assert ("deployment.environment" in span.resource.attributes) is ("OTEL_RESOURCE_ATTRIBUTES" in environ)


@pytest.mark.parametrize(
    ("environ", "chosen", "module"),
    [
        ({}, None, "proto.http"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None, "proto.grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf", "proto.http"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, None, "proto.grpc"),
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, "grpc", "proto.grpc"),
    ],
)
def test_the_protocol_is_that_of_the_settings_or_the_variables(
    environ: dict[str, str], chosen: Any, module: str, queues: list[Any]
) -> None:
    os.environ.update(environ)
    choices = TraceSettings(otlp_endpoint="http://127.0.0.1:9", otlp_protocol=chosen)
    assert traces.set_up_traces(choices, process="api").on
    assert module in type(queues[0].exporter).__module__


def test_the_share_of_the_settings_is_taken(queues: list[Any]) -> None:
    os.environ["OTEL_TRACES_SAMPLER"] = "always_on"
    choices = TraceSettings(otlp_endpoint="http://127.0.0.1:9", trace_sampling=0.0, slow_request=3.0)
    tracing: Tracing = traces.set_up_traces(choices, process="api")
    trace = tracing.begin("POST /x", {}, at=1.0)
    assert (trace.recording, trace.sampled, trace.slow_after) == (True, False, 3.0)


def test_the_bounds_are_those_of_the_standard_variables(queues: list[Any]) -> None:
    os.environ.update(
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_BSP_MAX_QUEUE_SIZE="99",
        OTEL_BSP_SCHEDULE_DELAY="250", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="nonsense",
    )  # fmt: skip
    traces.set_up_traces(NOTHING, process="api")
    assert queues[0].options == {"capacity": 99, "batch": 512, "delay": 0.25}


@pytest.mark.parametrize(
    ("environ", "missing", "remedy"),
    [
        ({}, "opentelemetry.exporter.otlp.proto.http.trace_exporter", "mambaserve[telemetry]"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
            "mambaserve[telemetry]",
        ),
        ({}, "opentelemetry.proto.common.v1.common_pb2", "--force-reinstall --no-deps opentelemetry-proto"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "", "http/protobuf or grpc"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "", "otlp or none"),
    ],
)
def test_traces_that_cannot_be_had_are_a_warning_with_the_remedy(
    environ: dict[str, str], missing: str, remedy: str, queues: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ.update({"OTEL_TRACES_EXPORTER": "otlp", **environ})
    if missing:
        for name in list(sys.modules):
            if name.startswith("opentelemetry.exporter.otlp.proto"):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
    with structlog.testing.capture_logs() as lines:
        assert traces.set_up_traces(NOTHING, process="api") is OFF
    assert queues == []
    [line] = lines
    assert (line["log_level"], line["event"]) == ("warning", "traces_unavailable")
    assert remedy in line["remedy"]
