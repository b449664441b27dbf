"""Clients that leave: the engine hears of it at once, and nothing else suffers."""

import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from engine_api import ApiProcess, serving
from eventually import PATIENCE, wait_until
from tiny_model import write_model

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with serving(write_model(tmp_path_factory.mktemp("model") / "tiny"), max_waiting_requests=64) as running:
        yield running


def send(api: ApiProcess, body: dict[str, Any], *, cut: int = 0) -> socket.socket:
    """Open a raw connection and send a request on it; `cut`: bytes of the body left out."""
    parts = urlsplit(api.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=PATIENCE)
    data = json.dumps(body).encode()
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + (data[:-cut] if cut else data))
    return connection


def wait_aborted(api: ApiProcess, before: int, more: int = 1) -> None:
    """Wait until the engine has received `more` aborts."""
    wait_until(lambda: count(api) >= before + more, "the word to the engine")


def count(api: ApiProcess) -> int:
    return len(api.engine()["aborted"])


@pytest.mark.parametrize("salt", ["slow+stuck", "never"])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_aborted_in_the_engine(api: ApiProcess, salt: str, stream: bool) -> None:
    before = count(api)
    connection = send(api, {"prompt": "one two", "max_tokens": 100, "stream": stream, "cache_salt": salt})
    wait_until(lambda: api.engine()["running"])
    if stream and salt != "never":
        assert connection.recv(100)
    connection.close()
    # The engine would never have ended by itself.
    wait_aborted(api, before)
    assert api.engine()["running"] == []


def test_all_prompts_of_a_request_are_aborted(api: ApiProcess) -> None:
    before = count(api)
    connection = send(api, {"prompt": ["a", "b", "c"], "n": 2, "max_tokens": 100, "cache_salt": "never"})
    wait_until(lambda: len(api.engine()["running"]) == 3)
    connection.close()
    wait_aborted(api, before, 3)


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
    wait_until(lambda: aborts() >= before + 1)
    assert count(api) >= told


def test_a_client_that_leaves_in_the_middle_of_its_body_costs_nothing(api: ApiProcess) -> None:
    seen = len(api.engine()["seen"])
    send(api, {"prompt": "never sent whole", "cache_salt": "half"}, cut=5).close()
    assert api.call("POST", TEXT, {"prompt": "x", "cache_salt": "whole"}).status == 200
    assert [each["cache_salt"] for each in api.engine()["seen"][seen:]] == ["whole"]


def test_an_answer_that_finished_is_not_aborted(api: ApiProcess) -> None:
    before = count(api)
    for _ in range(5):
        assert api.call("POST", TEXT, {"prompt": "x", "max_tokens": 2}).status == 200
    # The word of one that leaves comes behind any of those.
    send(api, {"prompt": "x", "cache_salt": "never"}).close()
    wait_aborted(api, before)
    (told,) = api.engine()["aborted"][before:]
    assert told.startswith(api.engine()["seen"][-1]["request_id"])


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
    # It reads nothing until they are through.
    for _ in range(10):
        assert api.call("POST", TEXT, {"prompt": "x", "max_tokens": 2}).status == 200
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
        for connection in crowd[::2]:
            assert connection.recv(100)
        for connection in crowd:
            connection.close()
    wait_until(lambda: not api.engine()["running"])
    # The last of them may be told to the engine before the server has put it off its own list.
    wait_until(lambda: api.call("POST", "/admin/drain", admin=True).json["underWay"] == 0)
    api.call("POST", "/admin/undrain", admin=True)
