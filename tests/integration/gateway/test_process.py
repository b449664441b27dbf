"""`mambaserve gateway` as a process: ready line, drain, exit codes, wrong usage; the official client."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from aiohttp import web

from prefork import FORK_SERVER

REAL_TIME = True
COMMAND = ("-m", "mamba_cli", "gateway")
PATIENCE = 30.0
"""Longest wait for a real process, in seconds."""


async def drain(stream: AsyncIterator[Any]) -> None:
    async for _ in stream:
        pass


async def test_the_openai_client_works_through_the_gateway(engine, spawn) -> None:
    fake = await engine()
    _, url = await spawn("--backend", fake.url)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        assert [model.id async for model in api.models.list()] == ["m"]
        whole = await api.completions.create(model="m", prompt="x", max_tokens=4)
        assert whole.choices[0].text == "tttt"
        stream = await api.completions.create(model="m", prompt="x", max_tokens=5, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "0 1 2 3 4 "
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.completions.create(model="nope", prompt="x")
        assert unknown.value.code == "model_not_found"


async def test_the_openai_client_skips_comments_and_understands_limits(engine, spawn, tmp_path) -> None:
    fake = await engine(delay=0.3)
    keys = tmp_path / "keys"
    keys.write_text("sk-a team-a\n")
    limits = ("--api-key-file", str(keys), "--key-limit", "team-a:requests=1", "--comment-interval", "0.05")
    _, url = await spawn("--backend", fake.url, *limits)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-a", max_retries=0) as api:
        stream = await api.completions.create(model="m", prompt="x", max_tokens=5, stream=True)
        assert stream.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "0 1 2 3 4 "
        with pytest.raises(openai.RateLimitError) as refused:
            await api.completions.create(model="m", prompt="x")
        assert refused.value.code == "rate_limit_exceeded"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-b", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.completions.create(model="m", prompt="x")
    assert len(fake.seen) == 1


async def test_the_openai_client_sees_the_error_of_a_broken_stream(engine, spawn, eventually) -> None:
    fake = await engine()
    _, url = await spawn("--backend", fake.url)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as api:
        body = {"gap": 0.05}
        stream = await api.completions.create(
            model="m", prompt="x", max_tokens=100, stream=True, extra_body=body
        )
        texts = [(await anext(stream)).choices[0].text for _ in range(3)]
        assert texts == ["0 ", "1 ", "2 "]
        await fake.kill()
        with pytest.raises(openai.APIError, match="closed the connection"):
            await drain(stream)


async def test_the_anthropic_client_works_through_the_gateway(engine, spawn, tmp_path) -> None:
    usage = {"input_tokens": 2, "output_tokens": 1, "cache_read_input_tokens": 0}
    block = {"type": "text", "text": "t"}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "usage": usage}
    finish = asyncio.Event()

    async def speaks(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if request.path.endswith("/count_tokens"):
            return web.json_response({"input_tokens": 7})
        if not body.get("stream"):
            return web.json_response({**message, "content": [block], "stop_reason": "end_turn"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        start = {"type": "message_start", "message": {**message, "content": []}}
        await response.write(b"event: message_start\ndata: " + json.dumps(start).encode() + b"\n\n")
        await finish.wait()
        return response

    fake = await engine(handler=speaks)
    keys = tmp_path / "keys"
    keys.write_text("sk-a team-a\n")
    _, url = await spawn("--backend", fake.url, "--api-key-file", str(keys))
    asks: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-a", max_retries=0) as api:
        whole = await api.messages.create(**asks, max_tokens=4)
        assert whole.content[0].text == "t"
        assert (await api.messages.count_tokens(**asks)).input_tokens == 7
        assert all("x-api-key" not in request.headers for request in fake.seen)
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await api.messages.create(**{**asks, "model": "nope"}, max_tokens=4)
        assert unknown.value.body["error"]["type"] == "not_found_error"
        stream = await api.messages.create(**asks, max_tokens=4, stream=True)
        assert (await anext(stream)).type == "message_start"
        await fake.kill()
        with pytest.raises(anthropic.APIStatusError, match="closed the connection"):
            await drain(stream)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-b", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(**asks, max_tokens=4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_streams_finish_and_the_process_ends_with_0(
    number, engine, spawn, client, eventually
) -> None:
    finish = asyncio.Event()

    async def held(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await finish.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    fake = await engine(handler=held)
    process, url = await spawn("--backend", fake.url)

    async def read() -> bytes:
        async with client.post(f"{url}/v1/completions", json={"model": "m", "stream": True}) as response:
            return await response.read()

    running = asyncio.create_task(read())
    await eventually(lambda: fake.active == 1, PATIENCE)
    process.send_signal(number)
    await draining(client, url)
    async with client.post(f"{url}/v1/completions", json={"model": "m"}) as refused:
        assert refused.status == 503
        assert "Retry-After" in refused.headers
    finish.set()
    assert (await running).endswith(b"[DONE]\n\n")
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.to_thread(process.wait) == 0
    assert len(fake.seen) == 1


async def draining(client: aiohttp.ClientSession, url: str) -> None:
    """Return when /readyz says so."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with client.get(f"{url}/readyz") as response:
                if response.status == 503:
                    assert (await response.json())["status"] == "draining"
                    return
            await asyncio.sleep(0.01)


async def test_the_end_of_the_drain_time_cuts_streams_with_an_error_event_and_ends_with_1(
    engine, spawn, client, eventually
) -> None:
    fake = await engine()
    process, url = await spawn("--backend", fake.url, "--drain-timeout", "0.2")

    async def read() -> bytes:
        body = {"model": "m", "stream": True, "max_tokens": 1000, "gap": 0.02}
        async with client.post(f"{url}/v1/completions", json=body) as response:
            return await response.read()

    running = asyncio.create_task(read())
    await eventually(lambda: fake.active == 1, PATIENCE)
    await asyncio.sleep(0.1)
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        got = await running
        assert await asyncio.to_thread(process.wait) == 1
    assert got.startswith(b"data: ")
    assert b'"code":"draining"' in got.split(b"\n\n")[-3]
    await eventually(lambda: fake.active == 0, PATIENCE)


async def test_a_second_signal_hurries(engine, spawn, client, eventually) -> None:
    fake = await engine()
    process, url = await spawn("--backend", fake.url)
    body = {"model": "m", "max_tokens": 1000, "gap": 1}
    running = asyncio.create_task(_answered(client, url, body))
    await eventually(lambda: fake.active == 1, PATIENCE)
    process.terminate()
    await draining(client, url)
    process.terminate()
    async with asyncio.timeout(PATIENCE):
        assert await asyncio.to_thread(process.wait) == 1
        assert await running == 503


async def _answered(client, url, body) -> int:
    async with client.post(f"{url}/v1/completions", json=body) as response:
        return response.status


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 2, "either --backend URL"),
        (("--backend", "http://127.0.0.1:1", "--deployment", "x"), 2, "not both"),
        (("--backend", "127.0.0.1:1"), 2, "is not an http:// or https:// URL"),
        (("--backend", "http://127.0.0.1:1", "--max-in-flight", "0"), 2, "--max-in-flight"),
        (
            ("--backend", "http://127.0.0.1:1", "--redis-url", "redis://r"),
            2,
            "--prefix-index-scope says",
        ),
        (
            ("--backend", "http://127.0.0.1:1", "--redis-url", "redis://:secret@r"),
            2,
            "--redis-url: every user of the machine can read a password",
        ),
        (("--backend", "http://127.0.0.1:1", "--api-key-file", "/nonexistent/keys"), 2, "/nonexistent/keys"),
        (
            ("--deployment", "x", "--kubeconfig", "/nonexistent/config"),
            2,
            "--kubeconfig: /nonexistent/config: no such file",
        ),
        (("--backend", "http://127.0.0.1:1", "--host", "203.0.113.1"), 1, "203.0.113.1"),
    ],
)
async def test_wrong_usage_ends_with_its_code_and_says_why(options, code, said) -> None:
    done = await asyncio.to_thread(partial(FORK_SERVER.run, *COMMAND, *options, env=os.environ))
    assert done.returncode == code
    assert said in " ".join(done.stderr.split())
    assert done.stdout == ""


async def test_options_come_from_the_environment(engine) -> None:
    fake = await engine()
    process = FORK_SERVER.start(
        *COMMAND, env={"MAMBASERVE_BACKEND": fake.url, "MAMBASERVE_PORT": "0", "PATH": ""}
    )
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while "ready at" not in (line := await asyncio.to_thread(process.stderr.readline)):
            assert line
    process.terminate()
    assert await asyncio.to_thread(process.wait) == 0
    process.close()
