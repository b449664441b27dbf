"""Engines and gateways for the time of a benchmark: processes started by the command a user types."""

import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


class EngineFailed(Exception):
    """The process ended or did not become ready; the message has the end of its log."""


@contextmanager
def running_engine(
    model: Path,
    *options: str,
    threads: int | None,
    variables: Mapping[str, str] | None = None,
    ready_within: float = 600.0,
) -> Iterator[str]:
    """Run `mambaserve serve --model MODEL` and yield its base URL once it is ready. Raises `EngineFailed`.

    `threads`: of the engine's arithmetic, None = the engine's own choice; `variables`: of its environment.
    """
    environment = dict(variables or {})
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    arguments = ("serve", "--model", str(model), *options)
    with running_command(*arguments, variables=environment, ready_within=ready_within) as url:
        yield url


@contextmanager
def running_command(
    *arguments: str, variables: Mapping[str, str] | None = None, ready_within: float = 600.0, port: int = 0
) -> Iterator[str]:
    """Run `mambaserve ARGUMENTS` and yield its base URL once it is ready. `port` 0 = a free one.

    Raises `EngineFailed`.
    """
    command = (sys.executable, "-m", "mamba_cli", *arguments, "--port", str(port))
    environment = {**os.environ, **(variables or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    log: deque[str] = deque(maxlen=200)
    reader = threading.Thread(target=_read, args=(process, log), daemon=True)
    reader.start()
    try:
        yield _ready(process, log, time.monotonic() + ready_within, others=set(arguments))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join(5)
        if process.stdout is not None:
            process.stdout.close()


def _read(process: "subprocess.Popen[bytes]", log: deque[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.append(line.decode(errors="replace"))


def _ready(
    process: "subprocess.Popen[bytes]", log: deque[str], deadline: float, others: Collection[str]
) -> str:
    """Return the first URL of the log that answers; `others` belong to other processes."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EngineFailed(f"the process ended with {process.returncode}:\n{''.join(list(log)[-30:])}")
        for line in list(log):
            for url in re.findall(r"http://127\.0\.0\.1:\d+", line):
                if url not in others and _answers(f"{url}/readyz") and _answers(f"{url}/v1/models"):
                    return str(url)
        time.sleep(0.5)
    raise EngineFailed(f"the process was not ready in time:\n{''.join(list(log)[-30:])}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
