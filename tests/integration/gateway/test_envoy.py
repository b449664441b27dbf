"""Envoy itself in front of two engines, asking the endpoint picker: the protocol as it is spoken."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from aiohttp import web

from envoy_proxy import envoy
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings

REAL_TIME = True
"""Envoy is another process."""
GAUGES = "mambaserve_prefill_tokens_per_second 10000\nmambaserve_prompt_tokens_waiting 0\n"
PAGES = {"/readyz": "{}", "/metrics": GAUGES, "/v1/models": '{"data": [{"id": "m"}]}'}
USAGE = '{"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}'
EVENTS = (b'data: {"n": 1}\n\n', b'data: {"usage": ' + USAGE.encode() + b"}\n\n", b"data: [DONE]\n\n")


class Engine:
    """Ready and idle; answers with the size of what it got, or in three events."""

    def __init__(self) -> None:
        self.headers: list[dict[str, str]] = []

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 24)
        app.add_routes([web.get(path, self._page) for path in PAGES])
        app.add_routes([web.post("/v1/completions", self._answer)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        return web.Response(text=PAGES[request.path], content_type="application/json")

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({key.lower(): value for key, value in request.headers.items()})
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"size": len(await request.read()), "by": self.address})
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for event in EVENTS:
            await answer.write(event)
        return answer


async def test_envoy_asks_the_picker_and_does_as_it_says(tmp_path: Path) -> None:
    engines = [Engine(), Engine()]
    for engine in engines:
        await engine.start()
    by_address = {engine.address: engine for engine in engines}
    stop, where, listening = asyncio.Event(), *(asyncio.get_running_loop().create_future() for _ in range(2))
    settings = GatewaySettings(
        backend=tuple(f"http://{address}" for address in by_address), port=0, endpoint_picker_port=0,
        hold_timeout=0, drain_timeout=1, probe_interval=0.02,
    )  # fmt: skip
    gateway = asyncio.create_task(
        serve(settings, where.set_result, picker_ready=listening.set_result, stop=stop, rng=Random(7))
    )
    url = await where
    async with (
        aiohttp.ClientSession() as client,
        envoy(tmp_path, f"127.0.0.1:{await listening}", list(by_address)) as proxy,
    ):

        async def ask(prompt: str, *, model: str = "m", **headers: str) -> tuple[int, Any]:
            body = {"model": model, "prompt": prompt}
            async with client.post(f"{proxy}/v1/completions", json=body, headers=headers) as answer:
                return answer.status, await answer.json()

        shared = "the same beginning " * 60
        status, first = await ask(shared, Authorization="Bearer of-the-client")
        assert status == 200
        chosen = by_address.pop(first["by"])
        (other,) = by_address.values()
        # A client cannot choose by itself what the picker chooses.
        spoofed = {"x-gateway-destination-endpoint": other.address}
        for tail in ("one", "two"):
            assert (await ask(shared + tail, **spoofed))[1]["by"] == chosen.address
        assert not other.headers
        assert not any("authorization" in headers for headers in chosen.headers)

        large = "x" * 1_000_000
        status, told = await ask(large)
        assert (status, told["size"]) == (200, len(json.dumps({"model": "m", "prompt": large})))
        assert (await ask("x", model="other"))[1]["error"]["code"] == "model_not_found"

        streamed = {"model": "m", "prompt": "x", "stream": True}
        async with client.post(f"{proxy}/v1/completions", json=streamed) as answer:
            assert await answer.read() == b"".join(EVENTS)

        async def metrics() -> str:
            async with client.get(f"{url}/metrics") as answer:
                return await answer.text()

        labels = '{model_name="m",target_model_name="m"}'
        counted = f"inference_objective_prompt_cached_tokens_sum{labels} 3.0"
        # The picker hears of the answer's end from the proxy, a moment after the client.
        async with asyncio.timeout(30):
            while counted not in await metrics():  # noqa: ASYNC110 - another process tells
                await asyncio.sleep(0.02)

        await chosen.stop()
        status, told = await ask(shared + "three")
        assert (status, told["by"]) == (200, other.address)
        await other.stop()
        async with client.get(f"{url}/readyz") as answer:
            known = await answer.json()
        while known["endpoints"]["ready"]:
            async with client.get(f"{url}/readyz") as answer:
                known = await answer.json()
        status, told = await ask(shared)
        assert (status, told["error"]["code"]) == (503, "no_ready_endpoint")
    stop.set()
    assert await gateway == 0
