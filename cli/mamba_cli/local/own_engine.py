"""`own_engine`: one engine that serves a model for as long as one command or one Python object needs it."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mamba_cli.errors import CliError, RunFailed
from mamba_cli.local.loading.readiness import EngineReadiness, readiness_of
from mamba_cli.local.ports import free_ports
from mamba_cli.local.processes import die_with

PROBE_INTERVAL = 0.2
"""Seconds between two questions whether the engine is ready."""
PROBE_TIMEOUT = 5.0
"""Seconds within which the engine has to answer such a question."""
END_TIMEOUT = 30.0
"""Seconds that the engine has to end before it is killed."""
Show = Callable[[EngineReadiness | None], None]
"""Receives the progress of loading; None = the engine does not answer yet."""


@dataclass(frozen=True, slots=True)
class OwnEngine:
    """An engine that is ready, with its address and keys that nobody else has."""

    url: str
    admin_url: str
    api_key: str
    admin_token: str
    process: "subprocess.Popen[bytes]"
    log: Path
    """File with the engine's output, which exists as long as the engine."""


@contextlib.contextmanager
def own_engine(model: str, settings: Mapping[str, Any], show: Show) -> Iterator[OwnEngine]:
    """Serve `model` on a free port of the loopback and yield the engine once it is ready; end it afterwards.

    Args:
        model: directory or URI.
        settings: other settings of `mambaserve serve`; the rest come from its environment variables.
        show: receives the progress of loading.

    Raises the error of an engine that ends while it loads, with its exit code.
    """
    port, admin_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="mambaserve-own-") as name:
        folder = Path(name)
        key, token = _secret(folder / "key"), _secret(folder / "token")
        document = {**settings, "model": model, "api_key_file": str(folder / "key")}
        document["admin_token_file"] = str(folder / "token")
        (folder / "settings.json").write_text(json.dumps(document), encoding="utf-8")
        command = [sys.executable, "-m", "mamba_cli", "serve", "--config", str(folder / "settings.json")]
        addresses = ["--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port)]
        log, parent = folder / "engine.log", os.getpid()
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C at the terminal reaches the conversation alone.
            process = subprocess.Popen(
                [*command, *addresses],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: die_with(parent),  # noqa: PLW1509 - calls nothing that needs a lock
            )
        try:
            urls = (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
            _wait_until_ready(process, urls[0], log, show)
            yield OwnEngine(*urls, key, token, process, log)
        finally:
            _end(process)


def _secret(file: Path) -> str:
    """Write a new key to a file in a folder of this user alone, and return it."""
    key = secrets.token_urlsafe(32)
    file.write_text(key, encoding="utf-8")
    return key


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path, show: Show) -> None:
    """Show the progress of loading until the engine is ready. Raises `CliError` if it ends."""
    while True:
        readiness = _readiness(url)
        show(readiness)
        if readiness is not None and readiness.ready:
            return
        if (code := process.poll()) is not None:
            raise ended(code, log)
        time.sleep(PROBE_INTERVAL)


def _readiness(url: str) -> EngineReadiness | None:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=PROBE_TIMEOUT) as answer:  # noqa: S310
            status, body = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read()
    except OSError:
        return None
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return readiness_of(status, document) if isinstance(document, dict) else None


def ended(code: int, log: Path) -> CliError:
    """Return the error of an engine that ended, with its own message if it wrote one."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # Mistakes in settings are reported by the parser of the command line, with a capital letter.
    messages = [line[len("error: ") :] for line in lines if line.startswith(("error: ", "Error: "))]
    failure: CliError = RunFailed(messages[-1] if messages else f"the engine ended with exit code {code}")
    failure.exit_code = code if code > 0 else 1
    return failure


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the engine and the processes that it started."""
    deadline = time.monotonic() + END_TIMEOUT
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    while True:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
            return
        except KeyboardInterrupt:
            deadline = time.monotonic()  # whoever presses Ctrl-C again does not want to wait
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            deadline = time.monotonic() + END_TIMEOUT
