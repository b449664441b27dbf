"""One trace from a client through gateway and API to the engine's steps: real processes, real receivers."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine_api import ROOT
from eventually import wait_until
from otlp_receiver import Received, ReceivedSpan, grpc_receiver, http_receiver, waterfall
from servers import Command, Server

SAID = "marked words of a client"
DRAWN = ROOT / "docs/explanation/tracing.md"
NOBODY = "redis://127.0.0.1:9/0"
"""A Redis that is configured, and away."""
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass
class Processes:
    """A gateway, an API process and its engine. The gateway sends over HTTP, the API over gRPC."""

    engine: Server
    gateway: Command
    url: str
    over_http: Received
    over_grpc: Received

    def ask(self, trace: str, *, sampled: bool, **body: Any) -> str:
        """Send a request of a client that is in trace `trace` (two hex digits) and return its answer."""
        header = f"00-{trace * 16}-{'c' * 16}-0{int(sampled)}"
        given = {"model": self.engine.model, "temperature": 0, **body}
        path = "chat/completions" if "messages" in given else "completions"
        request = urllib.request.Request(
            f"{self.url}/v1/{path}",
            json.dumps(given).encode(),
            {"content-type": "application/json", "traceparent": header, "tracestate": "vendor=1"},
        )
        with urllib.request.urlopen(request, timeout=90) as answer:
            text: str = answer.read().decode()
            return text

    def spans(self, trace: str) -> list[ReceivedSpan]:
        """Return the spans of the trace that both receivers have."""
        return self.over_http.of(trace * 16) + self.over_grpc.of(trace * 16)

    def wait_for(self, trace: str) -> list[ReceivedSpan]:
        """Wait until both processes have sent their spans."""
        services = {"mambaserve", "mambaserve-gateway"}
        wait_until(lambda: {span.service for span in self.spans(trace)} == services, f"trace {trace}")
        return self.spans(trace)


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with http_receiver() as over_http, grpc_receiver() as over_grpc, pytest.MonkeyPatch.context() as patch:
        for name, value in SOON.items():
            patch.setenv(name, value)
        sampling = (
            "--trace-sampling", "0", "--slow-request", "30",
            "--redis-url", NOBODY, "--prefix-index-scope", "s",
        )  # fmt: skip
        with (
            Server(
                "builtin://tiny-recall", "--otlp-endpoint", over_grpc.url, "--otlp-protocol", "grpc",
                "--chunked-prefill-tokens", "64", *sampling,
            ) as engine,
            Command(
                "gateway", "--port", "0", "--backend", engine.url, "--otlp-endpoint", over_http.url, *sampling
            ) as gateway,
        ):  # fmt: skip
            url = gateway.wait_for(r"ready at (http://\S+)")[1]
            yield Processes(engine, gateway, url, over_http, over_grpc)


def chat(words: str = SAID) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{words} " * 16}], "max_tokens": 24, "ignore_eos": True}


def above(spans: list[ReceivedSpan], span: ReceivedSpan) -> list[str]:
    """Return the names from a span's parent up to the client's span."""
    by_id = {each.span_id: each for each in spans}
    names = []
    while (parent := by_id.get(span.parent_id)) is not None:
        names.append(parent.name)
        span = parent
    return [*names, "client"] if span.parent_id == "c" * 16 else names


def test_one_request_is_one_trace_from_the_client_to_the_engine_s_steps(processes: Processes) -> None:
    processes.ask("a1", sampled=True, stream=True, **chat())
    spans = processes.wait_for("a1")
    route = "POST /v1/chat/completions"
    api = [route, "gateway.attempt", route, "client"]
    engine = ["engine", *api]
    found = {span.name: above(spans, span) for span in spans if span.name != route}
    assert found == {
        "gateway.queue": [route, "client"],
        "gateway.route": [route, "client"],
        "gateway.attempt": [route, "client"],
        "api.template": api,
        "api.tokenize": api,
        "engine": api,
        "engine.queue": engine,
        "engine.prefill": engine,
        "engine.decode": engine,
    }
    servers = {span.service: above(spans, span) for span in spans if span.name == route}
    assert servers == {"mambaserve-gateway": ["client"], "mambaserve": ["gateway.attempt", route, "client"]}
    last = {span.name: span for span in spans}
    pieces = [span for span in spans if span.name == "engine.prefill"]
    prompt = last["engine"].attributes["gen_ai.usage.input_tokens"]
    edges = [
        (each.attributes["mambaserve.tokens.from"], each.attributes["mambaserve.tokens.to"])
        for each in pieces
    ]
    assert len(pieces) > 1
    assert edges == [*zip([0, *(stop for _, stop in edges)], [stop for _, stop in edges], strict=False)]
    assert edges[-1][1] == prompt
    assert any("mambaserve.checkpoints" in each.attributes for each in pieces)
    assert last["engine"].attributes["gen_ai.usage.output_tokens"] == 24
    assert last["engine.decode"].attributes["mambaserve.steps"] == 23
    assert last["engine"].attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert "first_token" in last["engine"].events
    # Clocks of one machine: what is below begins while what is above lasts, and ends before it within one
    # program. Another one may be kept from its own end when its last byte has long been read.
    by_id = {span.span_id: span for span in spans}
    slack = 5_000_000
    for span in spans:
        if (parent := by_id.get(span.parent_id)) is not None:
            assert parent.begin - slack <= span.begin <= parent.end + slack
            assert span.service != parent.service or span.end <= parent.end + slack
    if os.environ.get("MAMBASERVE_DRAW"):
        before, _, rest = DRAWN.read_text().partition("<!-- waterfall -->\n")
        after = rest.partition("<!-- end -->")[2]
        drawn = f"<!-- waterfall -->\n```text\n{waterfall(spans)}\n```\n<!-- end -->"
        DRAWN.write_text(before + drawn + after)


def test_a_prompt_that_is_resumed_says_from_where(processes: Processes) -> None:
    for trace in ("a2", "a3"):
        processes.ask(trace, sampled=True, **chat("the same again"))
    first, again = (processes.wait_for(trace) for trace in ("a2", "a3"))
    cached = {
        span.attributes.get("gen_ai.usage.cache_read.input_tokens") for span in first if span.name == "engine"
    }
    resumed = [
        span.attributes["gen_ai.usage.cache_read.input_tokens"] for span in again if span.name == "engine"
    ]
    pieces = [span.attributes["mambaserve.tokens.from"] for span in again if span.name == "engine.prefill"]
    assert cached == {None}
    assert resumed[0] > 0
    assert min(pieces) == resumed[0]


def test_of_what_is_neither_sampled_nor_slow_nor_failed_nothing_is_sent(processes: Processes) -> None:
    processes.ask("b1", sampled=False, **chat())
    with pytest.raises(urllib.error.HTTPError, match="400"):
        processes.ask("b2", sampled=False, prompt=SAID, max_tokens=-1)
    processes.ask("b3", sampled=True, **chat())  # what was kept of those before it would have come by now
    processes.wait_for("b3")
    assert (processes.spans("b1"), processes.spans("b2")) == ([], [])


def test_what_failed_is_kept_by_every_process_that_saw_it_fail(processes: Processes) -> None:
    with Command(
        "gateway", "--port", "0", "--backend", processes.engine.url, "--otlp-endpoint",
        processes.over_http.url, "--trace-sampling", "0", "--request-timeout", "0.05", env=SOON,
    ) as hasty:  # fmt: skip
        url = hasty.wait_for(r"ready at (http://\S+)")[1]
        impatient = replace(processes, gateway=hasty, url=url)
        with pytest.raises(urllib.error.HTTPError, match="504"):
            impatient.ask("d1", sampled=False, prompt=SAID, max_tokens=400, ignore_eos=True)
    # The end of the gateway sent what it had.
    kept = processes.over_http.of("d1" * 16)
    root = next(span for span in kept if span.parent_id == "c" * 16)
    assert (root.failed, root.attributes["mambaserve.kept"]) == (True, "failed")
    assert {"gateway.route", "gateway.attempt"} <= {span.name for span in kept}


def scraped(url: str) -> list[str]:
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=accept)) as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return lines


def test_a_scraper_finds_the_trace_behind_a_latency(processes: Processes) -> None:
    processes.ask("e1", sampled=True, **chat())
    for url, series in (
        (processes.url, "mambaserve_gateway_request_duration_seconds_bucket"),
        (processes.engine.url, "mambaserve_time_to_first_token_seconds_bucket"),
    ):
        assert scraped(url)[-1] == "# EOF"

        def points(url: str = url, series: str = series) -> bool:
            wanted = f'trace_id="{"e1" * 16}"'
            return any(line.startswith(series) and wanted in line for line in scraped(url))

        # A request is measured when it is over, which its client may see a moment before.
        wait_until(points, f"an exemplar of {series}")


def test_nothing_that_a_client_says_is_in_any_span_or_log(processes: Processes) -> None:
    processes.ask("f1", sampled=True, **chat())
    with pytest.raises(urllib.error.HTTPError, match="400"):
        processes.ask("f2", sampled=True, prompt=SAID, max_tokens=4, stop=[SAID, 7])
    processes.wait_for("f1")
    processes.wait_for("f2")
    sent = b"".join(processes.over_http.raw + processes.over_grpc.raw)
    assert b"gen_ai.usage.input_tokens" in sent
    assert SAID.encode() not in sent
    for process in (processes.engine, processes.gateway):
        wait_until(lambda p=process: f'"trace_id": "{"f1" * 16}"' in p.output, "the line of a request")
        assert SAID not in process.output
