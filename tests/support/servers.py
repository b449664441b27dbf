"""`mambaserve` commands as child processes for tests: started on free ports, ended by pid, never by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from eventually import wait_until
from prefork import FORK_SERVER

HOLDINGS = (
    "running", "waiting", "slots_live", "slots_tracking", "pages_sequence",
    "slots_receiving", "slots_exported", "slots_quarantined", "pages_receiving", "pages_quarantined",
)  # fmt: skip
"""Names in the ledger of what requests and transfers hold."""


class Command:
    """One running `mambaserve …`; its standard error is kept.

    `fresh`: whether Python starts its children anew, as it does for a user, instead of `warm_children`.
    """

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, fresh: bool = False) -> None:
        self.lines: list[str] = []
        self.process = FORK_SERVER.start(
            "-m", "mamba_cli", *arguments,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **(env or {})},
            stderr=subprocess.STDOUT, start_new_session=True,
            warm=not fresh and arguments[:1] in (("serve",), ("up",)),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, timeout: float = 90.0) -> re.Match[str]:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match
            if self.process.poll() is not None:
                self._reader.join(2)
                if match := re.search(pattern, self.output):
                    return match
                raise AssertionError(f"exit {self.process.returncode} before {pattern!r}:\n{self.output}")
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} within {timeout} s:\n{self.output}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 60.0) -> int:
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def close(self) -> None:
        """End it, whatever it does; for the end of a test."""
        if self.process.poll() is None:
            self.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        assert self.process.stdout is not None
        self._reader.join(5)
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(Command):
    """`mambaserve serve` on a model directory, ready."""

    def __init__(self, model: Path | str, *arguments: str, ready: float = 120.0, fresh: bool = False) -> None:
        places = ("--port", "0", "--admin-port", "0", "--device", "cpu")
        super().__init__("serve", "--model", str(model), *places, *arguments, fresh=fresh)
        match = self.wait_for(r"ready: (\S+) at (http://\S+)/v1 \(admin (http://[^)]+)\)", ready)
        self.model, self.url, self.admin = match[1], match[2], match[3]

    def engine_pid(self) -> int:
        """Return the id of the engine process, a child of the server."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"mamba_server.engine" in command or Path(f"/proc/{child}/comm").read_text() == "engine\n":
                return int(child)
        raise AssertionError(f"no engine process among {children}")

    def counted(self, series: str, *, sequences: int, labels: str = "") -> float:
        """Return the sum of a counter's series once `sequences` sequences have ended since the start.

        The engine publishes its counts some time after the answers, all at once. `labels`: words that each
        series of the sum has.
        """

        def counts() -> list[str] | None:
            with urllib.request.urlopen(f"{self.url}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            return lines if _total(lines, "mambaserve_sequences_finished_total") >= sequences else None

        return _total([line for line in wait_until(counts) if labels in line], series)

    def ledger(self) -> dict[str, int]:
        return call(f"{self.admin}/admin/ledger")[1]

    def wait_until_empty(self) -> None:
        """Wait until one ledger says that no request and no transfer is there, or holds anything.

        An engine that is away holds nothing of which its ledger could tell: the wait is for its next one.
        A look for running requests and a later one for their slots would not do. The server may still read
        a request whose client has left when it has ended all others.
        """
        held: dict[str, int] = {}

        def is_empty() -> bool:
            status, ledger = call(f"{self.admin}/admin/ledger")
            held.clear()
            held.update({name: ledger[name] for name in HOLDINGS if ledger[name]} if status == 200 else {})
            return status == 200 and not held

        try:
            wait_until(is_empty)
        except AssertionError as never:
            raise AssertionError(
                f"the engine of {self.url} still holds {held or 'an unknown amount'}"
            ) from never


def _total(lines: list[str], series: str) -> float:
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{series}{{"))


def call(url: str, body: Any = None, *, timeout: float = 60.0, method: str | None = None) -> tuple[int, Any]:
    """Send one request and return (status, JSON); error statuses are answers too."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(
        url,
        data,
        {"Content-Type": "application/json"},
        method=method or ("POST" if data is not None else "GET"),
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        return error.code, json.loads(text or b"null")
