"""Questions over HTTP to children that answer well, badly or not at all: readiness and the demonstration."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from mamba_cli.errors import RunFailed
from mamba_cli.local import demo
from mamba_cli.local.loading.readiness import (
    EngineReadiness,
    engine_readiness,
    gateway_ready,
    put_strategy,
    takes_chats,
)

AWAY = "http://127.0.0.1:9"


@dataclass
class Child:
    """Answers everything alike."""

    url: str = ""
    status: int = 200
    body: bytes = b"{}"
    abort: bool = False
    bodies: list[Any] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if self.abort:
            assert request.transport is not None
            request.transport.abort()
        if request.method != "GET":
            self.bodies.append(await request.json())
        return web.Response(status=self.status, body=self.body)


@pytest.fixture
async def child() -> AsyncIterator[Child]:
    found = Child()
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", found.answer)
    async with TestServer(app) as server:
        found.url = str(server.make_url("")).rstrip("/")
        yield found


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b'{"status": "ready"}', EngineReadiness(True, "ready")),
        (503, b'{"stage": "weights", "done": 1.0, "total": 2}', EngineReadiness(False, "weights", 1, 2)),
        (503, b'{"stage": "weights", "done": "1", "total": [2]}', EngineReadiness(False, "weights")),
        (503, b'{"stage": null, "status": "draining"}', EngineReadiness(False, "draining")),
        (200, b"[1]", EngineReadiness(True)),
        (200, b"<html>another server</html>", EngineReadiness(False)),
        (200, b"\xff", EngineReadiness(False)),
        (200, b"", EngineReadiness(True)),
    ],
)
async def test_whatever_an_engine_says_is_read_or_not_ready(
    child: Child, http: aiohttp.ClientSession, status: int, body: bytes, expected: EngineReadiness
) -> None:
    child.status, child.body = status, body
    assert await engine_readiness(http, child.url) == expected


async def test_an_engine_that_does_not_answer_is_not_known(child: Child, http: aiohttp.ClientSession) -> None:
    assert await engine_readiness(http, AWAY) is None
    child.abort = True
    assert await engine_readiness(http, child.url) is None


SERIES = "mambaserve_gateway_endpoint_ready"


@pytest.mark.parametrize(
    ("status", "body", "ready"),
    [
        (200, f'{SERIES}{{endpoint="127.0.0.1:5"}} 1.0', True),
        (200, f'{SERIES}{{endpoint="127.0.0.1:5"}} 0.0', False),
        (200, f'{SERIES}{{endpoint="127.0.0.1:6"}} 1.0', False),
        (200, '{"status": "ready", "endpoints": {"known": 1, "ready": 1}}', False),
        (200, "", False),
        (503, f'{SERIES}{{endpoint="127.0.0.1:5"}} 1.0', False),
    ],
)
async def test_a_gateway_is_ready_when_it_may_use_this_engine_and_another_s_gateway_is_none(
    child: Child, http: aiohttp.ClientSession, status: int, body: str, ready: bool
) -> None:
    child.status, child.body = status, body.encode()
    assert await gateway_ready(http, child.url, "http://127.0.0.1:5") is ready


async def test_a_gateway_that_is_away_is_not_ready(http: aiohttp.ClientSession) -> None:
    assert not await gateway_ready(http, AWAY, AWAY)


@pytest.mark.parametrize(
    ("status", "body", "chats"),
    [
        (400, b'{"error": {"code": "no_chat_template"}}', False),
        (400, b'{"error": {"code": "context_length_exceeded"}}', True),
        (502, b"<html>", True),
    ],
)
async def test_a_model_without_a_chat_template_is_known_by_the_refusal(
    child: Child, http: aiohttp.ClientSession, status: int, body: bytes, chats: bool
) -> None:
    child.status, child.body = status, body
    assert await takes_chats(http, child.url, "m") is chats


@pytest.mark.parametrize(("status", "problem"), [(200, ""), (204, ""), (409, "the engine answered 409: why")])
async def test_a_strategy_is_taken_over_or_the_engine_s_words_are_given(
    child: Child, http: aiohttp.ClientSession, status: int, problem: str
) -> None:
    child.status, child.body = status, b"" if status == 204 else b"why"
    assert await put_strategy(http, child.url, {"strategy": "NoBuffer", "trackInterval": 64}) == problem
    assert child.bodies == [{"strategy": "NoBuffer", "trackInterval": 64}]


async def test_of_an_engines_envelope_the_message_is_given(child: Child, http: aiohttp.ClientSession) -> None:
    child.status, child.body = 409, b'{"error": {"message": "19 more slots", "code": "refused"}}'
    assert await put_strategy(http, child.url, {}) == "the engine answered 409: 19 more slots"


async def test_long_words_of_an_engine_are_cut(child: Child, http: aiohttp.ClientSession) -> None:
    child.status, child.body = 500, b"x" * 10_000
    assert len(await put_strategy(http, child.url, {"trackInterval": 64})) < 400


async def test_an_engine_that_hangs_up_is_away(child: Child, http: aiohttp.ClientSession) -> None:
    child.abort = True
    assert "the engine cannot be reached: " in await put_strategy(http, child.url, {"trackInterval": 64})


async def test_a_chat_is_asked_without_chance_and_answered(child: Child, http: aiohttp.ClientSession) -> None:
    usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    child.body = json.dumps({"choices": [{"message": {"content": " iron "}}], "usage": usage}).encode()
    question, messages = demo.chats()[0]
    found = await demo.ask(http, child.url, "tiny", question, messages)
    assert found == demo.DemoAnswer(question, "iron", 9, 4)
    [body] = child.bodies
    assert (body["model"], body["temperature"], body["messages"]) == ("tiny", 0, messages)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (500, b"oops", "answered 500: oops"),
        (404, b'{"error": {"message": "no such model"}}', "answered 404: .*no such model"),
        (429, b"x" * 10_000, "answered 429: x{500}$"),
        (200, b"<html>", "an answer that is not one of the OpenAI API: <html>"),
        (200, b'{"choices": []}', "an answer that is not one of the OpenAI API"),
        (
            200,
            b'{"choices": [{"message": null}], "usage": {}}',
            "an answer that is not one of the OpenAI API",
        ),
        (
            200,
            b'{"choices": [{"message": {"content": "x"}}], "usage": null}',
            "an answer that is not one of the OpenAI API",
        ),
    ],
)
async def test_an_answer_that_is_none_is_a_failure_that_shows_it(
    child: Child, http: aiohttp.ClientSession, status: int, body: bytes, words: str
) -> None:
    child.status, child.body = status, body
    with pytest.raises(RunFailed, match=f"^demo: .*{words}"):
        await demo.ask(http, child.url, "tiny", *demo.chats()[0])


async def test_an_endpoint_that_is_away_or_hangs_up_is_a_failure(
    child: Child, http: aiohttp.ClientSession
) -> None:
    child.abort = True
    for url in (AWAY, child.url):
        with pytest.raises(RunFailed, match=f"^demo: no answer from {url}: ."):
            await demo.ask(http, url, "tiny", *demo.chats()[0])


def test_an_empty_answer_is_shown_as_empty() -> None:
    body = {"choices": [{"message": {"content": None}}], "usage": {"prompt_tokens": 1}}
    assert demo.read_answer("q", json.dumps(body)).text == ""
