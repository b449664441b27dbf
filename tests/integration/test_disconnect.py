"""Clients that leave: the engine hears of it at once, and nothing else suffers."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine_api import ApiProcess, serving
from tiny_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny"), max_waiting_requests=64) as running:
        yield running


def send(api: ApiProcess, body: dict[str, Any], *, cut: int = 0) -> socket.socket:
    """A raw connection with a request on it; `cut`: bytes of the body left out."""
    parts = urlsplit(api.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=10)
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + (data[:-cut] if cut else data))
    return connection


def aborted_within(api: ApiProcess, before: int, seconds: float, count: int = 1) -> float:
    """Seconds until the engine was told to abort `count` more requests."""
    started = time.monotonic()
    while len(api.engine()["aborted"]) < before + count:
        assert time.monotonic() - started < seconds, "the engine was not told"
        time.sleep(0.005)
    return time.monotonic() - started


def count(api: ApiProcess) -> int:
    return len(api.engine()["aborted"])


@pytest.mark.parametrize("salt", ["slow", "never"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted_in_the_engine(api: ApiProcess, salt: str, stream: bool) -> None:
    before = count(api)
    connection = send(api, {"prompt": "one two", "max_tokens": 100, "stream": stream, "cache_salt": salt})
    while not api.engine()["running"]:
        time.sleep(0.005)
    if stream and salt == "slow":
        assert connection.recv(100)
    connection.close()
    assert aborted_within(api, before, 2.0) < 1.0
    assert api.engine()["running"] == []


def test_all_prompts_of_a_request_are_aborted(api: ApiProcess) -> None:
    before = count(api)
    connection = send(api, {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 100, "cache_salt": "slow"})
    while len(api.engine()["running"]) < 3:
        time.sleep(0.005)
    connection.close()
    aborted_within(api, before, 2.0, count=3)


def test_a_client_that_leaves_is_counted_as_aborted(api: ApiProcess) -> None:
    def aborts() -> float:
        text = api.call("GET", "/metrics").body.decode()
        line = next(
            line for line in text.splitlines()
            if line.startswith("mambaserve_requests_finished_total") and 'reason="abort"' in line
        )  # fmt: skip
        return float(line.split()[-1])

    before, told = aborts(), count(api)
    send(api, {"prompt": "x", "cache_salt": "never"}).close()
    deadline = time.monotonic() + 5
    while aborts() < before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert count(api) >= told


def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(api: ApiProcess) -> None:
    seen = len(api.engine()["seen"])
    send(api, {"prompt": "never sent whole", "cache_salt": "half"}, cut=5).close()
    time.sleep(0.2)
    assert len(api.engine()["seen"]) == seen
    assert api.call("POST", TEXT, {"prompt": "x"}).status == 200


def test_an_answer_that_finished_is_not_aborted(api: ApiProcess) -> None:
    before = count(api)
    for _ in range(5):
        assert api.call("POST", TEXT, {"prompt": "x", "max_tokens": 2}).status == 200
    time.sleep(0.1)
    assert count(api) == before


def test_a_stop_string_tells_the_engine_how_many_tokens_count(api: ApiProcess) -> None:
    answer = api.call(
        "POST",
        TEXT,
        {
            "prompt": "one two three ",
            "max_tokens": 90,
            "stop": "three",
            "cache_salt": "slow",
            "return_token_ids": True,
        },
    )
    choice = answer.json["choices"][0]
    assert choice["text"] == "one two "
    state = api.engine()
    request_id, index, keep = state["stopped"][-1]
    assert request_id.startswith(answer.json["id"])
    assert (index, keep) == (0, len(choice["token_ids"]))
    assert answer.json["usage"]["completion_tokens"] == keep


def test_a_slow_reader_delays_nobody_else(api: ApiProcess) -> None:
    slow = send(api, {"prompt": "one two", "max_tokens": 100, "n": 64, "stream": True})
    started = time.monotonic()
    for _ in range(10):
        assert api.call("POST", TEXT, {"prompt": "x", "max_tokens": 2}).status == 200
    assert time.monotonic() - started < 10
    received = b""
    while b"[DONE]" not in received:
        received += slow.recv(65536)
    slow.close()


def test_many_clients_that_come_and_go_leave_nothing_behind(api: ApiProcess) -> None:
    for round_number in range(5):
        crowd = [
            send(
                api,
                {"prompt": f"{round_number} {item}", "max_tokens": 100, "stream": True, "cache_salt": "slow"},
            )
            for item in range(10)
        ]
        time.sleep(0.05)
        for connection in crowd:
            connection.close()
    deadline = time.monotonic() + 10
    while api.engine()["running"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    drained = api.call("POST", "/admin/drain", admin=True).json
    api.call("POST", "/admin/undrain", admin=True)
    assert drained["underWay"] == 0
