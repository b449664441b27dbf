"""Many requests and few places: who is held, who is refused, and who goes first when an engine comes."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from mamba_gateway.admission import fair_queue
from mamba_gateway.endpoints.endpoint import ENGINE_QUEUE

BODY = {"model": "m", "prompt": "x"}


async def status(client: aiohttp.ClientSession, url: str, key: str = "", **body: Any) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with client.post(f"{url}/v1/completions", json={**BODY, **body}, headers=headers) as response:
        await response.read()
        return response.status


@pytest.fixture
def keys(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    path.write_text("sk-a team-a\nsk-b team-b\n")
    return str(path)


async def held(gateway, client, count: int) -> None:
    for _ in range(1000):
        if (await gateway.metrics(client))["mambaserve_gateway_held"] == count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError


async def test_requests_that_were_held_reach_the_engine_that_comes_as_fast_as_it_has_places(
    engine, gateway, client
) -> None:
    fake = await engine(ready=False, max_running=4, delay=0.2)

    async def crowded(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=429 if fake.active > 4 + ENGINE_QUEUE else 200)

    fake.handler = crowded
    through = await gateway(fake, hold_timeout=60)
    asking = [asyncio.create_task(status(client, through.url)) for _ in range(100)]
    await held(through, client, 100)
    fake.ready = True
    assert await asyncio.gather(*asking) == [200] * 100
    assert (await through.metrics(client))["mambaserve_gateway_held"] == 0


async def test_keys_take_turns_also_among_requests_that_were_held(engine, gateway, client, keys) -> None:
    fake = await engine(ready=False, max_running=1, delay=0.2)
    through = await gateway(fake, hold_timeout=60, api_key_file=keys)
    ends: list[str] = []

    async def ask(key: str) -> None:
        assert await status(client, through.url, key) == 200
        ends.append(key)

    many = [asyncio.create_task(ask("sk-a")) for _ in range(60)]
    await held(through, client, 60)
    few = [asyncio.create_task(ask("sk-b")) for _ in range(3)]
    await held(through, client, 63)
    fake.ready = True
    await asyncio.gather(*many, *few)
    # What the engine was given at first came first; then each key has every other turn.
    assert max(at for at, key in enumerate(ends) if key == "sk-b") < 40


async def test_a_model_without_an_engine_does_not_keep_another_waiting(engine, gateway, client) -> None:
    dead = await engine("a", models=("a",), ready=False)
    well = await engine("b", models=("b",), delay=0.2, max_running=4)
    through = await gateway(dead, well, hold_timeout=30)
    asking = [asyncio.create_task(status(client, through.url, model="a")) for _ in range(40)]
    await held(through, client, 40)
    begin = asyncio.get_running_loop().time()
    assert await asyncio.gather(*(status(client, through.url, model="b") for _ in range(5))) == [200] * 5
    assert asyncio.get_running_loop().time() - begin < 1
    dead.ready = True
    assert await asyncio.gather(*asking) == [200] * 40


async def test_a_prompt_whose_client_leaves_before_the_answer_is_paid_for(
    engine, gateway, client, eventually
) -> None:
    fake = await engine(delay=60)
    through = await gateway(fake, tokens_per_minute=1000)
    asking = asyncio.create_task(status(client, through.url, prompt="word " * 450, max_tokens=1))
    await eventually(lambda: len(fake.seen) == 1)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: fake.active == 0)
    fake.delay = 0
    assert await status(client, through.url, prompt="word " * 450, max_tokens=1) == 429


async def test_a_key_whose_requests_are_all_rejected_takes_turns_with_another_key(
    engine, gateway, client, keys
) -> None:
    fake = await engine(max_running=1)

    async def rejecting(_request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(1)
        return web.Response(status=400 if body["prompt"] == "wrong" else 200)

    fake.handler = rejecting
    through = await gateway(fake, api_key_file=keys)
    many = [asyncio.create_task(status(client, through.url, "sk-a", prompt="wrong")) for _ in range(60)]
    await asyncio.sleep(0.1)
    assert await status(client, through.url, "sk-b") == 200
    # The engine had its fill of the others at first; their next ones wait behind this one.
    assert sum(one.done() for one in many) <= 2 * (1 + ENGINE_QUEUE)
    assert await asyncio.gather(*many) == [400] * 60


FULL = {"max_in_flight": 8, "max_queue": 4}


async def test_a_key_that_takes_all_admissions_loses_one_to_another_key(
    engine, gateway, client, keys, eventually
) -> None:
    fake = await engine(delay=1.0, max_running=64)
    through = await gateway(fake, api_key_file=keys, **FULL)
    greedy = [asyncio.create_task(status(client, through.url, "sk-a")) for _ in range(12)]
    await eventually(lambda: fake.active == 8)
    assert await status(client, through.url, "sk-b") == 200
    assert sorted(await asyncio.gather(*greedy)) == [200] * 11 + [429]
    assert await status(client, through.url, "sk-a") == 200


async def test_a_key_whose_requests_are_all_held_loses_one_to_another_key(
    engine, gateway, client, keys
) -> None:
    fake = await engine(ready=False, max_running=4)
    through = await gateway(fake, api_key_file=keys, hold_timeout=60, **FULL)
    greedy = [asyncio.create_task(status(client, through.url, "sk-a")) for _ in range(12)]
    await held(through, client, 12)
    modest = asyncio.create_task(status(client, through.url, "sk-b"))
    assert (await asyncio.wait(greedy, return_when=asyncio.FIRST_COMPLETED))[0].pop().result() == 429
    fake.ready = True
    assert await modest == 200
    assert sorted(await asyncio.gather(*greedy)) == [200] * 11 + [429]


async def test_bodies_that_do_not_come_keep_no_other_key_out(
    engine, gateway, client, keys, monkeypatch
) -> None:
    monkeypatch.setattr(fair_queue, "SLOW_BODY_SECONDS", 0.5)
    fake = await engine()
    through = await gateway(fake, api_key_file=keys, **FULL)
    opened = [await unfinished(through.url, "sk-a") for _ in range(12)]
    first_lines = [asyncio.create_task(reader.readline()) for reader, _ in opened]
    await asyncio.sleep(0.1)
    assert [await status(client, through.url, "sk-b") for _ in range(3)] == [200] * 3
    # Requests of its own key wait until those have been coming for a while.
    await asyncio.sleep(0.5)
    assert [await status(client, through.url, "sk-a") for _ in range(3)] == [200] * 3
    said, others = await asyncio.wait(first_lines, timeout=1)
    assert {line.result()[:12] for line in said} == {b"HTTP/1.1 429"}
    assert len(others) >= 8
    for one in others:
        one.cancel()
    for _, writer in opened:
        writer.close()


async def unfinished(url: str, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname or "", parts.port or 0)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    body = json.dumps(BODY).encode()
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:1])
    await writer.drain()
    return reader, writer


async def test_without_an_engine_the_expected_model_is_listed_and_other_names_get_404(
    engine, gateway, client
) -> None:
    fake = await engine()
    await fake.kill()
    through = await gateway(fake, hold_timeout=60, served_model_name="m", wait=False)
    async with client.get(f"{through.url}/v1/models") as response:
        assert [entry["id"] for entry in (await response.json())["data"]] == ["m"]
    assert await status(client, through.url, model="nonsense") == 404
    asking = asyncio.create_task(status(client, through.url))
    await held(through, client, 1)
    await fake.start()
    assert await asking == 200
