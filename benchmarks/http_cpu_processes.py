"""The processes that `http_cpu` measures, each started and ended with what it needs around it."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from benchmarks.http_cpu_client import PROMPT

ROOT = Path(__file__).resolve().parents[1]
PARTS = Path(__file__).with_name("http_cpu_parts.py")
TINY = Path("server", "mamba_server", "builtin", "tiny-recall")


@dataclass(frozen=True, slots=True)
class ProcessUnderTest:
    """A process under test."""

    pid: int
    port: int
    upstream: int | None = None
    """Port of what it relays to; None = it answers itself."""


def end_children_on_sigterm() -> None:
    """Let SIGTERM end this process as an error would: what was started is ended first."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)


@contextmanager
def started(command: Sequence[str], pattern: str, cwd: Path) -> Iterator[tuple[int, str]]:
    """Start a child process and yield its id and the URL in its ready line."""
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if match := re.search(pattern + r".*?(http://[^\s)/]+)", line):
                break
        else:
            raise RuntimeError(f"{' '.join(command)} ended: {''.join(lines[-10:])}")
        # Nobody may block on a full pipe.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield process.pid, match[1]
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def api(tree: Path) -> Iterator[ProcessUnderTest]:
    """Run the API process of a tree over the scripted engine."""
    command = [str(tree / ".venv/bin/python"), "-P", str(PARTS), "api", str(tree / TINY)]
    with started(command, "mambaserve: ready", tree) as (pid, url):
        yield ProcessUnderTest(pid, _port(url))


@contextmanager
def gateway(tree: Path, *options: str) -> Iterator[ProcessUnderTest]:
    """Run the gateway of a tree before the scripted upstream."""
    python = str(tree / ".venv/bin/python")
    with started([sys.executable, "-P", str(PARTS), "upstream"], "upstream ready", tree) as (_, upstream):
        command = [python, "-P", "-m", "mamba_cli", "gateway", "--backend", upstream, "--port", "0"]
        with started([*command, *options], "gateway ready", tree) as (pid, url):
            yield ProcessUnderTest(pid, _port(url), _port(upstream))


@contextmanager
def peer(python: Path) -> Iterator[ProcessUnderTest]:
    """Run the sglang-router of an environment before the scripted upstream, with its own defaults."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with started([sys.executable, "-P", str(PARTS), "upstream"], "upstream ready", ROOT) as (_, upstream):
        command = [
            str(python), "-m", "sglang_router.launch_router", "--worker-urls", upstream,
            "--host", "127.0.0.1", "--port", port, "--log-level", "warn",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(f"{url}/v1/completions"):
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.2)
            yield ProcessUnderTest(process.pid, int(port), _port(upstream))
        finally:
            process.terminate()
            process.wait(30)


def _port(url: str) -> int:
    return urlsplit(url).port or 80


def _answers(url: str) -> bool:
    request = urllib.request.Request(url, json.dumps(PROMPT).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
