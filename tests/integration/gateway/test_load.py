"""Many requests at once: they spread by load, and none is lost."""

import asyncio
from random import Random
from typing import Any

import aiohttp
import pytest

STREAM = {"model": "m", "prompt": "x", "stream": True}


async def read(client: aiohttp.ClientSession, url: str, **body: Any) -> bytes:
    async with client.post(f"{url}/v1/completions", json={**STREAM, **body}) as response:
        assert response.status == 200
        return await response.read()


async def test_a_hundred_at_once_spread_evenly(engine, gateway, client) -> None:
    engines = [await engine(str(n)) for n in range(4)]
    through = await gateway(*engines)
    got = await asyncio.gather(*(read(client, through.url, max_tokens=10, gap=0.05) for _ in range(100)))
    assert all(text.endswith(b"[DONE]\n\n") for text in got)
    assert [one.most_active for one in engines] == [25, 25, 25, 25]


async def test_reported_load_of_others_counts(engine, gateway, client) -> None:
    engines = [await engine("a", running=30), await engine("b", waiting=20), await engine("c")]
    through = await gateway(*engines)
    await asyncio.gather(*(read(client, through.url, max_tokens=10, gap=0.05) for _ in range(70)))
    # Forty each with those of others; what an engine costs is told apart from another's by a tenth at most.
    assert [one.most_active for one in engines] == pytest.approx([10, 20, 40], abs=4)


async def test_the_engine_that_finishes_first_gets_the_next_request(
    engine, gateway, client, eventually
) -> None:
    slow, quick = await engine("slow"), await engine("quick")
    through = await gateway(slow, quick)

    async def body_gap(engine_name: str) -> None:
        await read(client, through.url, max_tokens=10, gap=0.2 if engine_name == "slow" else 0)

    first = asyncio.create_task(body_gap("slow"))
    await eventually(lambda: slow.active + quick.active == 1)
    busy, idle = (slow, quick) if slow.active else (quick, slow)
    for _ in range(8):
        await body_gap("quick")
    assert len(idle.seen) == 8
    assert len(busy.seen) == 1
    await first


async def test_two_hundred_streams_at_once_all_end_well_and_in_order(engine, gateway, client) -> None:
    engines = [await engine(str(n)) for n in range(2)]
    through = await gateway(*engines)
    rng = Random(3)
    counts = [rng.randrange(1, 40) for _ in range(200)]
    got = await asyncio.gather(*(read(client, through.url, max_tokens=count, gap=0.01) for count in counts))
    for text, count in zip(got, counts, strict=True):
        events = text.split(b"\n\n")
        assert len(events) == count + 2
        assert all(b'"text": "%d "' % n in piece for n, piece in enumerate(events[:count]))
        assert events[count] == b"data: [DONE]"
    seen = await through.metrics(client)
    assert seen["mambaserve_gateway_in_flight"] == 0
    assert (
        seen['mambaserve_gateway_requests_total{code="200",model="m",reason="",route="/v1/completions"}']
        == 200
    )


async def test_churning_clients_leave_no_count_behind(engine, gateway, client, eventually) -> None:
    engines = [await engine(str(n)) for n in range(2)]
    through = await gateway(*engines, max_in_flight=16, max_queue=200)
    rng = Random(5)

    async def impatient() -> None:
        try:
            async with asyncio.timeout(rng.uniform(0.005, 0.3)):
                await read(client, through.url, max_tokens=rng.randrange(1, 30), gap=0.01)
        except TimeoutError:
            return

    await asyncio.gather(*(impatient() for _ in range(150)))
    await eventually(lambda: all(one.active == 0 for one in engines))
    await asyncio.sleep(0.05)
    seen = await through.metrics(client)
    assert seen["mambaserve_gateway_in_flight"] == 0
    assert seen["mambaserve_gateway_queued"] == 0
    for one in engines:
        assert seen[f'mambaserve_gateway_endpoint_in_flight{{endpoint="{one.url[7:]}"}}'] == 0
    assert (await read(client, through.url)).endswith(b"[DONE]\n\n")
