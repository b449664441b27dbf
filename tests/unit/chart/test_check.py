"""The script of `helm test`: silent success, and a failure that says which of the two does not answer."""

import os
import runpy
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from mamba_api import names

SCRIPT = Path(__file__).parents[3] / "charts/mambaserve/files/check.py"
TEMPLATE = (SCRIPT.parents[1] / "templates/tests/health.yaml").read_text()


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """Run a server that gives every GET this status; yield its port and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, asked
        finally:
            server.shutdown()
            thread.join()


def check(health: int, **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {
        "HEALTH_URL": f"http://127.0.0.1:{health}/healthz",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": "9",
        "RESOURCE": f"/{names.PLURAL}",
        "PATH": os.environ["PATH"],
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-I", str(SCRIPT)], env=given, capture_output=True, text=True, timeout=30
    )


def test_an_operator_that_is_not_well_fails_the_check_before_the_api_server_is_asked() -> None:
    with answering(500) as (port, asked):
        done = check(port)

    assert done.returncode != 0
    assert asked == ["/healthz"]
    assert "HTTP Error 500" in done.stderr
    assert done.stdout == ""


def test_an_operator_that_does_not_answer_fails_the_check() -> None:
    done = check(9)

    assert done.returncode != 0
    assert "URLError" in done.stderr


def test_a_healthy_operator_is_told_and_the_token_of_the_pod_is_needed_for_the_rest() -> None:
    with answering(200) as (port, _):
        done = check(port)

    assert done.stdout == f"200 http://127.0.0.1:{port}/healthz\n"
    assert done.returncode != 0
    assert "/var/run/secrets/kubernetes.io/serviceaccount" in done.stderr


@pytest.mark.parametrize("variable", ["HEALTH_URL", "RESOURCE"])
def test_the_template_gives_what_the_script_reads(variable: str) -> None:
    assert f"name: {variable}" in TEMPLATE
    assert f'os.environ["{variable}"]' in SCRIPT.read_text().replace("'", '"')


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:443/"), ("fd00::1", "https://[fd00::1]:443/")]
)
def test_the_api_server_is_asked_at_either_kind_of_address(
    host: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def urlopen(request: urllib.request.Request, **_: object) -> object:
        asked.append(request.full_url)
        return nullcontext(SimpleNamespace(status=200))

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: None)
    monkeypatch.setattr(Path, "read_text", lambda _: "token")
    environment = {
        "HEALTH_URL": "http://operator/healthz", "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": "443", "RESOURCE": f"/{names.PLURAL}",
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    runpy.run_path(str(SCRIPT))

    assert asked[1].startswith(url)
    assert urlsplit(asked[1]).port == 443
