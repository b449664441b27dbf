"""Starts the API process with the fake engine, as a child process or inside the test's event loop."""

import contextlib
import json
import os
import queue
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventually import PATIENCE, wait_until
from prefork import FORK_SERVER, ForkedProcess

ROOT = Path(__file__).resolve().parents[2]
NEVER = 3600.0
"""A limit that no test reaches: what ends before it did not wait for it."""
FAKE_ENGINE = ROOT / "tests" / "integration" / "fake_engine.py"
_LAUNCH = """
import sys
from mamba_cli.errors import CliError
from mamba_cli.commands import serve as module
from mamba_server.api import server
real = server.serve
server.serve = lambda settings, **more: real(settings, command=(sys.executable, sys.argv[1]), **more)
import json
try:
    sys.exit(module.run(json.loads(sys.argv[2])))
except CliError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


@dataclass
class Answer:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = self.json["error"]
        return error


@dataclass
class ApiProcess:
    """A running API process."""

    process: ForkedProcess
    output: "queue.Queue[str]"
    url: str = ""
    admin: str = ""
    logs: list[str] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        admin: bool = False,
        timeout: float = PATIENCE,
    ) -> Answer:
        """Send one request and return the answer, errors included."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        base = self.admin if admin else self.url
        request = urllib.request.Request(base + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def engine(self, token: str = "") -> dict[str, Any]:
        """Return the requests and messages that the fake engine has received so far."""
        headers = {"authorization": f"Bearer {token}"} if token else None
        state: dict[str, Any] = self.call("GET", "/admin/requests", admin=True, headers=headers).json
        return state

    def wait_log(self, event: str, **fields: Any) -> dict[str, Any]:
        """Wait for the first log line of this event with these fields and return it."""

        def look() -> dict[str, Any] | None:
            for line in list(self.logs):
                line_fields: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
                if line_fields.get("event") == event and all(
                    line_fields.get(key) == fields[key] for key in fields
                ):
                    return line_fields
            return None

        line_fields = wait_until(look, f"log line {event} {fields}")
        assert line_fields is not None
        return line_fields

    def wait_ready(self) -> None:
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, "readiness")
        code = self.process.poll()
        assert code is None, f"not ready; exit code {code}; logs: {''.join(self.logs[-20:])}"

    def is_ready(self) -> bool:
        """Return whether `/readyz` answers 200; False while nobody listens, too."""
        try:
            return self.call("GET", "/readyz").status == 200
        except OSError:
            return False

    def wait_exit(self) -> int:
        """Wait until the process has ended and return its exit code."""
        return self.process.wait(PATIENCE)


def launch(model: Path | str, *, script: dict[str, Any] | None = None, **settings: Any) -> ApiProcess:
    """Start it; the caller waits and ends it."""
    settings_given = {
        "model": str(model),
        "port": 0,
        "served_model_name": "tiny",
        "drain_timeout": NEVER,
        **settings,
    }
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("MAMBASERVE_", "OTEL_"))},
        "FAKE_ENGINE": json.dumps(script or {}),
        "OMP_NUM_THREADS": "1",
    }
    process = FORK_SERVER.start(
        "-c", _LAUNCH, str(FAKE_ENGINE), json.dumps(settings_given), env=environment, cwd=ROOT, warm=True
    )
    api = ApiProcess(process, queue.Queue())

    def pump(stream: Any, sink: Any) -> None:
        for line in stream:
            sink(line)

    for stream, sink in ((process.stdout, api.output.put), (process.stderr, api.logs.append)):
        threading.Thread(target=pump, args=(stream, sink), daemon=True).start()
    return api


@contextmanager
def serving(
    model: Path | str, *, script: dict[str, Any] | None = None, **settings: Any
) -> Iterator[ApiProcess]:
    """Run an API process that is ready, and end it afterwards."""
    api = launch(model, script=script, **settings)
    try:
        read_ready_line(api)
        yield api
    finally:
        end(api)


def read_ready_line(api: ApiProcess) -> str:
    """Wait for the ready line and take the URLs out of it."""
    try:
        line = api.output.get(timeout=PATIENCE)
    except queue.Empty:
        api.process.kill()
        raise AssertionError(f"no ready line; logs: {''.join(api.logs[-20:])}") from None
    words = line.split()
    api.url = next(word for word in words if word.startswith("http")).removesuffix("/v1")
    api.admin = words[-1].rstrip(")")
    return line


def end(api: ApiProcess) -> None:
    if api.process.poll() is None:
        # A second signal ends what a stream that a test left open would hold up.
        for _ in range(2):
            api.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                api.process.wait(2)
                break
        else:
            api.process.kill()
    api.wait_exit()
    api.process.close()
