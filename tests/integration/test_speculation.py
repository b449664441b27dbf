"""Drafts of a real server: a person switches them off and on over HTTP, and no answer changes."""

from collections.abc import Iterator
from typing import Any

import pytest

from eventually import wait_until
from servers import Server, call

pytestmark = pytest.mark.slow
MODEL = "builtin://tiny-recall"
COPIED = "red fox blue owl green hen " * 6


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Serve the shipped model, which drafts by look-up and by its head."""
    options = ("--arena-bytes", "32Mi", "--speculation", "auto", "--audit-share", "1")
    with Server(MODEL, *options) as running:
        yield running


def answer(server: Server) -> str:
    """Return an answer that repeats itself."""
    body = {"prompt": COPIED, "max_tokens": 80, "temperature": 0, "ignore_eos": True}
    status, completion = call(f"{server.url}/v1/completions", body)
    assert status == 200, completion
    return str(completion["choices"][0]["text"])


def drafted(server: Server, sequences: int) -> float:
    """Return the tokens that were drafted for the first sequences of the server, of all kinds."""
    return server.counted("mambaserve_draft_tokens_total", sequences=sequences)


def switch(server: Server, body: Any = None) -> tuple[int, Any]:
    method = "GET" if body is None else "PUT"
    return call(f"{server.admin}/admin/speculation", body, method=method)


def status(server: Server) -> str:
    """Return what the status page says of drafts."""
    return str(call(f"{server.url}/v1/status")[1]["engines"][0]["speculation"])


def test_drafts_go_off_and_on_by_a_call_and_no_answer_changes(server: Server) -> None:
    first = answer(server)
    before = drafted(server, 1)
    assert before > 0
    assert switch(server) == (200, {"on": True, "reason": ""})
    wait_until(lambda: status(server) == "on")

    off = {"on": False, "reason": "switched off by an admin call"}
    assert switch(server, {"on": False}) == (200, off)
    assert answer(server) == first
    assert drafted(server, 2) == before
    wait_until(lambda: status(server) == off["reason"])

    assert switch(server, {"on": True}) == (200, {"on": True, "reason": ""})
    assert answer(server) == first
    assert drafted(server, 3) > before
    wait_until(lambda: status(server) == "on")


@pytest.mark.parametrize("body", [{}, {"on": "yes"}, {"on": None}, {"on": True, "off": True}, [], b"{"])
def test_a_body_that_does_not_say_on_or_off_is_refused_and_changes_nothing(server: Server, body: Any) -> None:
    code, refusal = switch(server, body)

    assert code in {400, 422}, refusal
    assert refusal["error"]["message"]
    assert switch(server)[1]["on"] is True
