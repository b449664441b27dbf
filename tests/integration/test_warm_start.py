"""An engine that fetches the prefixes of its peers before it is ready."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from servers import Command, Server, call

CHAT = "/v1/chat/completions"
WORDS = " ".join(f"word{number}" for number in range(40))


def model() -> Path:
    assert mamba_server.__file__ is not None
    return Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


@contextmanager
def engine(*arguments: str) -> Iterator[Server]:
    with Server(
        model(),
        "--seed",
        "1",
        "--batch-invariant",
        "--arena-bytes",
        "16Mi",
        "--transfer-port",
        "0",
        *arguments,
    ) as server:
        yield server


@pytest.fixture(scope="module")
def peer() -> Iterator[Server]:
    with engine() as server:
        for mark in ("alpha", "beta", "gamma"):
            ask(server, mark)
        yield server


def ask(server: Server, mark: str) -> tuple[Any, int]:
    body = {
        "messages": [{"role": "user", "content": f"{mark} {WORDS}"}], "max_tokens": 6, "temperature": 0,
        "logprobs": True,
    }  # fmt: skip
    status, answer = call(server.url + CHAT, body)
    assert status == 200, answer
    return answer["choices"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def address_of(server: Server) -> str:
    return str(call(f"{server.url}/readyz")[1]["transfer"]["address"])


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_the_first_requests_of_a_new_replica_resume_what_its_peer_has(peer: Server) -> None:
    port = address_of(peer).rpartition(":")[2]
    # By a name, beside a peer that is away and one that no name server knows.
    peers = f"127.0.0.1:{closed_port()},nowhere.invalid:9,localhost:{port}"
    with engine("--warm-peers", peers, "--warm-seconds", "20") as replica:
        for mark in ("alpha", "beta", "gamma"):
            choices, cached = ask(replica, mark)
            assert cached > 100
            assert choices == ask(peer, mark)[0]
        account = replica.ledger()
        assert account["slots_receiving"] == account["slots_quarantined"] == 0


@pytest.mark.slow
def test_a_peer_that_says_nothing_is_waited_for_by_name_and_keeps_no_engine_from_starting() -> None:
    port = closed_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peers = f"127.0.0.1:{silent.getsockname()[1]}"
        with Command(
            "serve", "--model", str(model()), "--port", str(port), "--admin-port", "0", "--device", "cpu",
            "--arena-bytes", "16Mi", "--transfer-port", "0", "--warm-peers", peers, "--warm-seconds", "2",
        ) as starting:  # fmt: skip
            wait_until(lambda: stage_at(port) == "fetching prefixes from peers", "the stage")
            starting.wait_for("ready: tiny-recall")
            status, _ = call(f"http://127.0.0.1:{port}/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert status == 200


def stage_at(port: int) -> str | None:
    """Return the stage of a start; None = the server does not answer yet."""
    try:
        status, body = call(f"http://127.0.0.1:{port}/readyz")
    except OSError:
        return None
    assert status == 503
    return str(body.get("stage"))


def test_a_peer_of_another_layout_gives_nothing(peer: Server) -> None:
    with engine("--warm-peers", address_of(peer), "--state-dtype", "float16") as replica:
        assert ask(replica, "alpha")[1] == 0


def test_an_engine_that_ends_leaves_its_prefixes_to_a_peer_that_stays() -> None:
    with engine() as staying:
        ask(staying, "omega")
        with engine("--warm-peers", address_of(staying), "--warm-seconds", "0.1") as leaving:
            expected = {mark: ask(leaving, mark)[0] for mark in ("alpha", "beta")}
            leaving.terminate()
            assert leaving.wait() == 0
        for mark, choices in expected.items():
            resumed, cached = ask(staying, mark)
            assert cached > 100
            assert resumed == choices
        account = staying.ledger()
        assert account["slots_receiving"] == account["slots_quarantined"] == account["slots_exported"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [("--leave-seconds", "0"), ("--role", "prefill"), ("--state-dtype", "float16")],
    ids=["none are left", "another role", "another layout"],
)
def test_what_no_peer_can_use_is_not_left_to_it(options: tuple[str, ...]) -> None:
    with engine() as staying:
        ask(staying, "omega")
        with engine("--warm-peers", address_of(staying), "--warm-seconds", "0.1", *options) as leaving:
            ask(leaving, "alpha")
            leaving.terminate()
            assert leaving.wait() == 0
        assert ask(staying, "alpha")[1] == 0


def test_a_peer_that_says_nothing_delays_the_end_of_an_engine_no_longer_than_it_may() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peers = f"127.0.0.1:{silent.getsockname()[1]}"
        with engine(
            "--warm-peers", peers, "--warm-seconds", "0.1", "--leave-seconds", "1", "--drain-timeout", "60"
        ) as leaving:
            ask(leaving, "alpha")
            leaving.terminate()
            leaving.wait_for("states_left")
            assert leaving.wait() == 0
