"""Prefixes that clients pin, over HTTP: they outlive the traffic of others, and end by time and by flush."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from eventually import wait_until
from servers import Server, call

CHAT = "/v1/chat/completions"
SYSTEM = " ".join(f"rule{number}" for number in range(40))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    assert mamba_server.__file__ is not None
    model = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"
    with Server(model, "--arena-bytes", "3Mi", "--max-model-len", "1024", "--pin-share", "0.5") as running:
        yield running


def system(mark: str, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": f"{mark} {SYSTEM}", **more}


def cached(server: Server, message: dict[str, Any], question: str = "and?") -> int:
    """Ask with this system message; return the tokens that were resumed."""
    body = {"messages": [message, {"role": "user", "content": question}], "max_tokens": 1}
    status, answer = call(server.url + CHAT, body)
    assert status == 200, answer
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def crowd(server: Server, mark: str) -> None:
    """Fill the cache with other prompts."""
    for number in range(40):
        prompt = f"{mark}{number} " + " ".join(f"noise{number}x{each}" for each in range(40))
        status, answer = call(f"{server.url}/v1/completions", {"prompt": prompt, "max_tokens": 1})
        assert status == 200, answer


@pytest.mark.parametrize("place", ["message", "part"])
def test_a_pinned_system_message_stays_and_others_go(server: Server, place: str) -> None:
    control = {"type": "ephemeral", "ttl": "1h"}
    if place == "message":
        pinned = system(f"pin {place}", cache_control=control)
    else:
        text = system(f"pin {place}")["content"]
        pinned = {"role": "system", "content": [{"type": "text", "text": text, "cache_control": control}]}
    cached(server, pinned)
    cached(server, system(f"loose {place}"))
    assert server.ledger()["pinned"] >= 1
    crowd(server, place)
    # Another question: what stays is the prefix that ends with the message, for whoever begins with it.
    assert cached(server, system(f"pin {place}"), "something else entirely") > 100
    assert cached(server, system(f"loose {place}"), "something else entirely") < 100


@pytest.mark.parametrize("place", ["system", "tool"])
def test_a_block_of_anthropics_format_pins_the_system_prompt(server: Server, place: str) -> None:
    control = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    on = {"system": control if place == "system" else {}, "tool": control if place == "tool" else {}}

    def resumed(question: str) -> int:
        body = {
            "model": "tiny-recall",
            "max_tokens": 1,
            "system": [{"type": "text", "text": system(f"block {place}")["content"], **on["system"]}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}, **on["tool"]}],
            "messages": [{"role": "user", "content": question}],
        }
        status, answer = call(f"{server.url}/v1/messages", body)
        assert status == 200, answer
        return int(answer["usage"]["cache_read_input_tokens"])

    resumed("and?")
    crowd(server, f"block {place}")
    assert resumed("something else entirely") > 100


def test_a_message_whose_prefix_was_resumed_past_is_pinned_too(server: Server) -> None:
    cached(server, system("later"))
    cached(server, system("later", cache_control={"type": "ephemeral"}))
    crowd(server, "later")
    assert cached(server, system("later"), "something else entirely") > 100


def test_a_flush_ends_a_pin(server: Server) -> None:
    message = system("flushed", cache_control={"type": "ephemeral"})
    cached(server, message)
    call(f"{server.admin}/admin/flush_cache", b"")
    assert server.ledger()["pinned"] == 0
    assert cached(server, message) == 0


@pytest.mark.parametrize(
    ("control", "words"),
    [
        ({"type": "forever"}, "cache_control"),
        ({"type": "ephemeral", "ttl": "2d"}, "ttl"),
        ("5m", "cache_control"),
    ],
)
def test_a_wrong_cache_control_is_refused(server: Server, control: Any, words: str) -> None:
    status, answer = call(server.url + CHAT, {"messages": [system("x", cache_control=control)]})
    assert status == 400
    assert words in answer["error"]["param"]


def complete(server: Server, prompt: str, pin: str | None) -> tuple[int, Any]:
    headers = {"content-type": "application/json"} | ({} if pin is None else {"X-Mambaserve-Pin": pin})
    body = json.dumps({"prompt": prompt, "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_whole_prompt_is_pinned_by_a_header_until_its_time_is_over(server: Server) -> None:
    before = server.ledger()["pinned"]
    status, _ = complete(server, f"header {SYSTEM}", "1s")
    assert status == 200
    assert server.ledger()["pinned"] == before + 1
    wait_until(lambda: server.ledger()["pinned"] == before, "the end of the pin")


@pytest.mark.parametrize("time", ["", "10", "0m", "25h", "-5m", "1d"])
def test_a_wrong_time_in_the_header_is_refused(server: Server, time: str) -> None:
    status, answer = complete(server, "x", time)
    assert (status, answer["error"]["param"]) == (400, "X-Mambaserve-Pin")
    assert "10m" in answer["error"]["message"]
