"""`mambaserve usage`: what a gateway reports as a table, JSON or CSV, and what is wrong otherwise."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.main import application

LINE = {
    "name": "alice", "requests": 3, "prompt_tokens": 1200, "resumed_tokens": 800, "output_tokens": 90,
    "device_seconds": 1.5, "slot_seconds": 3.0, "page_seconds": 40.0, "saved_device_seconds": 0.5,
    "cost": 0.0015, "saved_cost": 0.0005,
}  # fmt: skip
REPORT = {
    "object": "list", "by": "key", "since": "2026-11-28", "until": "2026-11-29", "currency": "EUR",
    "data": [LINE, {**LINE, "name": "bob"}], "total": {**LINE, "name": "", "requests": 6},
}  # fmt: skip


class Reporter:
    """A server that answers every path with one status and body."""

    def __init__(self) -> None:
        self.status, self.body, self.paths = 200, REPORT, list[str]()
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                this.paths.append(self.path)
                body = json.dumps(this.body).encode()
                self.send_response(this.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def reporter() -> Iterator[Reporter]:
    reporter = Reporter()
    thread = Thread(target=reporter.server.serve_forever, args=(0.01,))
    thread.start()
    yield reporter
    reporter.server.shutdown()
    thread.join()
    reporter.server.server_close()


def usage(*arguments: str) -> str:
    result = CliRunner().invoke(application("usage"), ["usage", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_report_is_a_table_with_days_and_costs_or_a_document_for_programs(
    reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = usage(reporter.url, "--since", "2026-11-28")
    assert "2026-11-28 to 2026-11-29 (UTC)" in table
    assert [line.split() for line in table.splitlines()[2:]] == [
        ["alice", "3", "1,200", "800", "90", "1.5", "3.0", "40.0", "0.5", "0.0015", "0.0005"],
        ["bob", "3", "1,200", "800", "90", "1.5", "3.0", "40.0", "0.5", "0.0015", "0.0005"],
        ["total", "6", "1,200", "800", "90", "1.5", "3.0", "40.0", "0.5", "0.0015", "0.0005"],
    ]
    assert json.loads(usage(reporter.url, "--format", "json", "--by", "model")) == REPORT
    rows = usage(reporter.url, "--format", "csv", "--day", "2026-11-28").splitlines()
    assert rows[0].startswith("key,requests,prompt_tokens,resumed_tokens,output_tokens,device_seconds")
    assert rows[1] == "alice,3,1200,800,90,1.5,3.0,40.0,0.5,0.0015,0.0005,EUR"
    assert len(rows) == 3
    assert reporter.paths == [
        "/v1/usage?by=key&since=2026-11-28",
        "/v1/usage?by=model",
        "/v1/usage?by=key&since=2026-11-28&until=2026-11-28",
    ]


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (404, {"error": {"message": "no such path"}}, InvalidInput, "keeps no ledger"),
        (400, {"error": {"message": "the ledger keeps 30 days"}}, InvalidInput, "keeps 30 days"),
        (401, {"error": {"message": "no API key"}}, InvalidInput, "--api-key"),
        (503, {"error": {"message": "the Redis of the ledger does not answer"}}, RunFailed, "Redis"),
    ],
)
def test_what_the_gateway_refuses_is_said_with_what_to_do(
    reporter: Reporter, status: int, body: dict[str, Any], error: type[Exception], words: str
) -> None:
    reporter.status, reporter.body = status, body
    with pytest.raises(error, match=words):
        usage(reporter.url)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidInput, match="not both"):
        usage("--day", "2026-11-28", "--since", "2026-11-28")
    with pytest.raises(InvalidInput, match="mambaserve ps"):
        usage("nobody")
    assert CliRunner().invoke(application("usage"), ["usage", "--day", "yesterday"]).exit_code == 2
