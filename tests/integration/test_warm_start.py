"""Engines that fetch the prefixes of their peers before they are ready, and leave their own to them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from matrix_size import LARGE
from servers import Command, Server, call
from testcluster.free_ports import free_port

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


def leave(server: Server) -> None:
    """End an engine as a drain does."""
    server.terminate()
    assert server.wait() == 0


def test_the_first_requests_of_a_new_replica_resume_what_its_peer_has(peer: Server) -> None:
    port = address_of(peer).rpartition(":")[2]
    # By a name, beside a peer that is away and one that no name server knows.
    peers = f"127.0.0.1:{free_port()},nowhere.invalid:9,localhost:{port}"
    with engine("--warm-peers", peers, "--warm-seconds", "20", "--leave-seconds", "0") as replica:
        for mark in ("alpha", "beta", "gamma"):
            choices, cached = ask(replica, mark)
            assert cached > 100
            assert choices == ask(peer, mark)[0]
        account = replica.ledger()
        assert account["slots_receiving"] == account["slots_quarantined"] == 0
        ask(replica, "delta")
        leave(replica)
    # An engine that may take no time to leave gives nothing.
    assert ask(peer, "delta")[1] == 0


def test_a_silent_peer_is_waited_for_by_name_and_delays_neither_start_nor_end_longer_than_it_may() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        peers = f"127.0.0.1:{silent.getsockname()[1]}"
        with Command(
            "serve", "--model", str(model()), "--port", str(port), "--admin-port", "0", "--device", "cpu",
            "--arena-bytes", "16Mi", "--transfer-port", "0", "--warm-peers", peers, "--warm-seconds", "2",
            "--leave-seconds", "1", "--drain-timeout", "60",
        ) as starting:  # fmt: skip
            wait_until(lambda: stage_at(port) == "fetching prefixes from peers", "the stage")
            starting.wait_for("ready: tiny-recall")
            body = {"prompt": WORDS, "max_tokens": 1}
            assert call(f"http://127.0.0.1:{port}/v1/completions", body)[0] == 200
            starting.terminate()
            starting.wait_for("states_left")
            assert starting.wait() == 0


def stage_at(port: int) -> str | None:
    """Return the stage of a start; None = the server does not answer yet."""
    try:
        status, body = call(f"http://127.0.0.1:{port}/readyz")
    except OSError:
        return None
    assert status == 503
    return str(body.get("stage"))


def test_engines_of_another_layout_give_each_other_nothing(peer: Server) -> None:
    with engine("--warm-peers", address_of(peer), "--state-dtype", "float16") as replica:
        assert ask(replica, "alpha")[1] == 0
        ask(replica, "epsilon")
        leave(replica)
    assert ask(peer, "epsilon")[1] == 0


@pytest.mark.skipif(not LARGE, reason="a role decides like a layout: MAMBASERVE_GATES=large")
def test_an_engine_of_another_role_leaves_nothing(peer: Server) -> None:
    with engine("--warm-peers", address_of(peer), "--role", "prefill") as leaving:
        ask(leaving, "zeta")
        leave(leaving)
    assert ask(peer, "zeta")[1] == 0


def test_an_engine_that_ends_leaves_its_prefixes_to_a_peer_that_stays(peer: Server) -> None:
    with engine("--warm-peers", address_of(peer), "--warm-seconds", "0.1") as leaving:
        expected = {mark: ask(leaving, mark)[0] for mark in ("omega", "sigma")}
        leave(leaving)
    for mark, choices in expected.items():
        resumed, cached = ask(peer, mark)
        assert cached > 100
        assert resumed == choices
    account = peer.ledger()
    assert account["slots_receiving"] == account["slots_quarantined"] == account["slots_exported"] == 0
