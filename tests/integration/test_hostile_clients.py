"""A server whose clients mean ill: what they send is refused for little CPU time and memory.

Both are the process's own, so a busy machine does not matter; times of answers are not looked at.
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from engine_api import Answer, ApiProcess, serving
from eventually import PATIENCE, wait_until
from hostile_bodies import hostile_bodies, plain_body
from tiny_model import write_model

TEXT = "/v1/completions"
MIB = 1 << 20
BODY, BUDGET = 10 * MIB, 24 * MIB


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    model = write_model(tmp_path_factory.mktemp("model") / "tiny")
    with serving(model, max_body_bytes=BODY, max_held_body_bytes=BUDGET) as running:
        yield running


def resident(api: ApiProcess) -> int:
    """Return the bytes of memory of the API process."""
    pages = int(Path(f"/proc/{api.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu(api: ApiProcess) -> float:
    """Return the seconds of CPU time that the API process took so far."""
    fields = Path(f"/proc/{api.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def connect(api: ApiProcess, sent: bytes = b"") -> socket.socket:
    parts = urlsplit(api.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def unfinished(length: int) -> bytes:
    """Return a request whose body lacks its last byte."""
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}"
    return head.encode() + b"\r\n\r\n" + b" " * (length - 1)


def answered(api: ApiProcess) -> Answer:
    return api.call("POST", TEXT, {"prompt": "x", "max_tokens": 1})


@pytest.mark.slow
def test_hostile_bodies_cost_little(api: ApiProcess) -> None:
    plain = plain_body()
    tokens = b'{"prompt":[' + b"1," * 300_000 + b'1],"max_tokens":-1}'
    for raw in (plain.body[:1000], tokens):
        api.call("POST", TEXT, raw=raw)
    memory, begin = resident(api), cpu(api)
    for _ in range(5):
        api.call("POST", TEXT, raw=tokens)
    plain_cost, begin = (cpu(api) - begin) / 5, cpu(api)
    bodies = [body for body in hostile_bodies() if body.name != "empty prompts"]
    for body in bodies:
        answer = api.call("POST", body.path, raw=body.body)
        assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), body.name
    assert cpu(api) - begin < len(bodies) * (5 * plain_cost + 0.05)
    assert resident(api) - memory < 100 * MIB


def test_unfinished_bodies_take_no_more_than_the_budget(api: ApiProcess) -> None:
    memory = resident(api)
    with contextlib.ExitStack() as opened:
        # Each is answered, or held: its bytes are taken from the socket in either case.
        held = [opened.enter_context(connect(api, unfinished(BODY))) for _ in range(12)]
        wait_until(lambda: sum(map(bool, map(peek, held))) >= 10)
        answers = list(map(peek, held))
        refused = [answer for answer in answers if answer]
        assert len(refused) == 10
        assert all(answer.startswith(b"HTTP/1.1 503 ") for answer in refused)
        assert all(b"retry-after: 2" in answer and b'"code":"overloaded"' in answer for answer in refused)
        # A buffer that grows may be there twice for a moment, and the allocator keeps some.
        assert resident(api) - memory < 2 * BUDGET
        assert api.call("GET", "/livez").status == 200
    wait_until(lambda: answered(api).status == 200)


def peek(connection: socket.socket) -> bytes:
    """Return the bytes received so far."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return connection.recv(2000, socket.MSG_PEEK)
    return b""


def test_idle_connections_cost_little(api: ApiProcess) -> None:
    memory = resident(api)
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(connect(api)) for _ in range(500)]
        for connection in connections:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        for connection in connections:
            wait_until(lambda connection=connection: peek(connection).endswith(b'{"status":"alive"}'))
        assert answered(api).status == 200
        assert resident(api) - memory < 20 * MIB
