"""A gateway that is killed: its clients are told nothing false, its engine and its limits are free again."""

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine_api import ApiProcess, serving
from eventually import PATIENCE, wait_until
from mamba_gateway.admission.allowance import LEASE_SECONDS
from redis_server import RedisServer
from servers import Command
from tiny_model import write_model

pytestmark = pytest.mark.redis
KEY = "sk-one"
RUNNING = "mambaserve:limits:1:{ns/model:team}:running"
"""Where gateways together count the requests of the key's name."""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path / "tiny")) as running:
        yield running


class Gateway(Command):
    """`mambaserve gateway` that sends one request at a time on; two of the key may be under way."""

    def __init__(self, api: ApiProcess, redis: RedisServer, keys: Path) -> None:
        super().__init__(
            "gateway", "--backend", api.url, "--port", "0",
            "--max-in-flight", "1", "--api-key-file", str(keys),
            "--redis-url", redis.url, "--prefix-index-scope", "ns/model", "--concurrent-requests", "2",
        )  # fmt: skip
        self.url = self.wait_for(r"gateway ready at (http://\S+)")[1]

    def ask(self, script: str, max_tokens: int = 50) -> socket.socket:
        """Send a request for a stream."""
        body = {"model": "tiny", "prompt": "the same prompt", "max_tokens": max_tokens, "stream": True}
        raw = json.dumps({**body, "cache_salt": script}).encode()
        lines = ("POST /v1/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}")
        head = "\r\n".join((*lines, f"Content-Length: {len(raw)}", "Connection: close", "", ""))
        parts = urlsplit(self.url)
        connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)
        connection.sendall(head.encode() + raw)
        return connection


def rest(connection: socket.socket) -> tuple[bytes, bool]:
    """Return the bytes until the connection ends, and whether it was reset."""
    got = b""
    with connection:
        while True:
            try:
                part = connection.recv(1 << 16)
            except ConnectionResetError:
                return got, True
            if not part:
                return got, False
            got += part


def leases(redis: RedisServer) -> int:
    return int(redis.command("ZCARD", RUNNING)[1:])


@pytest.mark.slow
def test_streams_break_off_the_engine_is_freed_and_another_gateway_goes_on(
    api: ApiProcess, redis_server: RedisServer, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY} team\n")
    with contextlib.ExitStack() as stack:
        killed, other = (stack.enter_context(Gateway(api, redis_server, keys)) for _ in range(2))
        streaming = stack.enter_context(killed.ask("stuck"))
        begun = b""
        while b"data: " not in begun:
            part = streaming.recv(1 << 16)
            assert part, begun
            begun += part
        waiting = stack.enter_context(killed.ask("queued"))
        wait_until(lambda: leases(redis_server) == 2)
        assert len(api.engine()["running"]) == 1

        killed.process.send_signal(signal.SIGKILL)
        got, _ = rest(streaming)
        got = begun + got
        # Neither the event nor the chunk that says that this is all; a client library raises.
        assert b"[DONE]" not in got
        assert b"\r\n0\r\n\r\n" not in got
        assert b'"finish_reason":"' not in got
        assert rest(waiting)[0] == b""

        # The engine notices by the connection: what ran is aborted, what waited never came.
        wait_until(lambda: not api.engine()["running"])
        assert len(api.engine()["aborted"]) == 1
        assert [each["cache_salt"] for each in api.engine()["seen"]] == ["stuck"]

        # Two requests of nobody count for as long as a lease lives, and no longer.
        assert leases(redis_server) == 2
        assert b"429 " in rest(other.ask("", 2))[0].partition(b"\r\n")[0]
        assert 0 < int(redis_server.command("TTL", RUNNING)[1:]) <= LEASE_SECONDS
        for lease in redis_server.command("ZRANGE", RUNNING, "0", "-1").split(b"\r\n")[2::2]:
            redis_server.command("ZADD", RUNNING, "1", lease.decode())  # as after that time
        answer, _ = rest(other.ask("", 2))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"data: [DONE]" in answer
        wait_until(lambda: leases(redis_server) == 0)
        assert api.engine()["seen"][-1]["token_ids"] == api.engine()["seen"][0]["token_ids"]
