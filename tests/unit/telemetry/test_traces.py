"""Traces: the standard switches, and the header that is passed on in any case."""

import pytest
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
