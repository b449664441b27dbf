"""Traces: the standard switches, and the header that is passed on in any case."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry import trace

from mamba_telemetry import traces

ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x:4318"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_TRACES_EXPORTER": "otlp"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_only_the_standard_variables_turn_them_on(environ: dict[str, str], wanted: bool) -> None:
    assert traces.wanted(environ) is wanted


def span_of(headers: dict[str, str]) -> trace.Span:
    return trace.get_current_span(traces.incoming(headers))


def test_a_callers_trace_is_continued() -> None:
    span = span_of({"traceparent": f"00-{ID}-b7ad6b7169203331-01"})
    assert traces.trace_id(span) == ID
    assert traces.traceparent(span).split("-")[1] == ID


@pytest.mark.parametrize("header", [None, "", "nonsense", f"00-{'0' * 32}-b7ad6b7169203331-01", f"99-{ID}"])
def test_without_a_valid_header_there_is_no_trace(header: str | None) -> None:
    span = span_of({} if header is None else {"traceparent": header})
    assert traces.trace_id(span) is None
    assert traces.traceparent(span) == ""


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The providers that were installed; none of them is left behind."""
    installed: list[Any] = []
    monkeypatch.setattr(trace, "set_tracer_provider", installed.append)
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    yield installed
    for one in installed:
        one.shutdown()


def test_without_the_variables_nothing_is_installed(provider: list[Any]) -> None:
    assert traces.set_up_traces(process="api") is False
    assert provider == []


@pytest.mark.parametrize(
    ("environ", "service"),
    [
        ({}, "api"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test"}, "api"),
    ],
)
def test_the_process_names_the_service_unless_the_variables_do(
    environ: dict[str, str], service: str, provider: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert traces.set_up_traces(process="api") is True
    [installed] = provider
    assert installed.resource.attributes["service.name"] == service


def test_traces_that_are_wanted_and_not_installed_are_a_warning_with_the_remedy(
    provider: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with structlog.testing.capture_logs() as lines:
        assert traces.set_up_traces(process="api") is False
    assert provider == []
    [line] = lines
    assert (line["log_level"], line["event"]) == ("warning", "traces_unavailable")
    assert "mambaserve[telemetry]" in line["remedy"]


def test_the_vendor_s_part_of_a_trace_is_passed_on_with_it() -> None:
    headers = {"traceparent": f"00-{ID}-b7ad6b7169203331-00", "tracestate": "vendor=1", "cookie": "secret"}
    context = trace.get_current_span(traces.incoming(headers)).get_span_context()
    assert context.trace_state.get("vendor") == "1"
    assert not context.trace_flags.sampled
    assert traces.traceparent(span_of(headers)).endswith("-00")
