"""Routing as a whole: a gateway over engines that give their tokenizer, from request to header."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from eventually import until
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from mamba_text.text_archive import TextArchive

ARCHIVE = TextArchive.pack(Path(__file__).parents[3] / "server/mamba_server/builtin/tiny-recall")
GAUGES = (
    "mambaserve_prefill_tokens_per_second 10000\nmambaserve_prompt_tokens_waiting 0\n"
    "mambaserve_prompt_room_tokens 1000000\n"
)
PAGES = {"/readyz": "{}", "/metrics": GAUGES, "/v1/models": '{"data": [{"id": "m"}]}'}


class Engine:
    """Ready, idle, and answers every request with nothing."""

    def __init__(self) -> None:
        self.requests = self.fetched = 0

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get(path, self._page) for path in PAGES])
        app.add_routes([web.get("/v1/tokenizer", self._tokenizer), web.post("/v1/completions", self._answer)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.name = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGES[request.path], content_type="application/json")

    async def _tokenizer(self, _: web.Request) -> web.Response:
        self.fetched += 1
        return web.Response(body=ARCHIVE.data, headers={"ETag": f'"{ARCHIVE.fingerprint}"'})

    async def _answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        return web.Response(text="{}", content_type="application/json")


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    made = [Engine(), Engine(), Engine()]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


async def test_requests_that_share_a_prompt_go_to_one_engine_and_the_header_says_why(
    engines: list[Engine],
) -> None:
    stop, where = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = GatewaySettings(backend=tuple(f"http://{e.name}" for e in engines), port=0, drain_timeout=1)
    gateway = asyncio.create_task(serve(settings, where.set_result, stop=stop, rng=Random(7)))
    url = await where
    async with aiohttp.ClientSession() as client:

        async def ask(prompt: str) -> dict[str, Any]:
            headers = {"X-Mambaserve-Explain": "1"}
            body = {"model": "m", "prompt": prompt}
            async with client.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                return dict(json.loads(answer.headers["X-Mambaserve-Explain"]))

        await until(lambda: any(engine.fetched for engine in engines))
        for _ in range(5000):  # it is unpacked beside the event loop
            if (await ask("word " * 9))["tokenized"]:
                break
        for engine in engines:
            engine.requests = 0
        told = [await ask("the same beginning " * 60 + tail) for tail in ("", "one", "two")]
        decisions = (await (await client.get(f"{url}/v1/routing/decisions?limit=1")).json())["data"]
    stop.set()
    assert await gateway == 0
    assert sorted(engine.requests for engine in engines) == [0, 0, 3]
    assert [one["reason"] for one in told] == ["home", "prefix", "prefix"]
    assert told[2]["considered"][0]["resumable"] > 128
    assert decisions[0]["engine"] == told[2]["engine"]
