"""A real redis-server for tests: the fixture `redis_server`, and the process behind it.

Each server has a port and a folder of its own, keeps nothing on disk, and dies with the test run, whose
summary names the version.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventually import wait_until
from mamba_api.names import authority
from redis_program import redis_program
from testcluster.free_ports import free_port

MEMORY_ONLY = ("--save", "", "--appendonly", "no")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the version of Redis: a result for one version does not hold for another."""
    reports = (each for reports in terminalreporter.stats.values() for each in reports)
    if any("redis" in getattr(each, "keywords", ()) for each in reports):
        terminalreporter.write_line(f"redis-server: {redis_program() or 'none, its tests are skipped'}")


class RedisServer:
    """One server at `host`:`port` that can be stopped and started again, empty."""

    def __init__(self, folder: Path, *options: str, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self.host = host
        self.options = (*MEMORY_ONLY, *options)
        self.leading: tuple[str, ...] = ()
        """Arguments before all others: a configuration file."""
        self.port = free_port(host)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{authority(self.host, self.port)}/0"

    def start(self) -> None:
        program = redis_program()
        if program is None:
            pytest.skip("there is no redis-server: apt-get install redis-server")
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with (self.folder / f"redis-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*bound, program.path, *self.leading, "--port", str(self.port), "--bind", self.host,
                 "--dir", str(self.folder), *self.options],
                env={**os.environ, **program.environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until(self._answers, "redis-server")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / f"redis-{self.port}.log").read_text()[-2000:]
        try:
            return self.command("PING").startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def command(self, *words: str) -> bytes:
        """Send a short command and return the raw answer."""
        with socket.create_connection((self.host, self.port), 5) as connection:
            parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{parts}".encode())
            return connection.recv(1 << 16)

    def pause(self) -> None:
        """Stop the process: its connections stay open without answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause, if there is one."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop at once, as by a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def _redis_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis_process: RedisServer) -> RedisServer:
    """Return an empty, running Redis; the session shares it, so a test that stops it starts it again."""
    _redis_process.command("FLUSHALL")
    return _redis_process


@pytest.fixture
def start_redis(tmp_path: Path) -> Iterator[Callable[..., RedisServer]]:
    """Start servers with options of their own; they end with the test."""
    servers: list[RedisServer] = []

    def start(*options: str, host: str = "127.0.0.1") -> RedisServer:
        servers.append(RedisServer(tmp_path, *options, host=host))
        servers[-1].start()
        return servers[-1]

    yield start
    for each in servers:
        each.stop()
