"""Real servers under load: disconnects leak nothing, a killed engine comes back, a drain loses none."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from servers import Server, call
from testmodels.checkpoints import random_nemotron_h


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_nemotron_h(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    with Server(model, "--arena-bytes", "64Mi", "--max-model-len", "1024") as running:
        yield running


def body(prompt: list[int], tokens: int, **fields: object) -> dict[str, object]:
    return {
        "model": "model0",
        "prompt": prompt,
        "max_tokens": tokens,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
        **fields,
    }


async def stream(
    session: aiohttp.ClientSession, url: str, request: dict[str, object], leave_after: float | None = None
) -> tuple[int, list[dict[str, object]], bool]:
    """(status, events, whether [DONE] came); leaves without a word after `leave_after` seconds."""
    events: list[dict[str, object]] = []
    done = False

    async def read() -> int:
        nonlocal done
        async with session.post(f"{url}/v1/completions", json=request) as answer:
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    done = True
                elif line.startswith(b"data: "):
                    events.append(json.loads(line[6:]))
            return answer.status

    try:
        status = await asyncio.wait_for(read(), leave_after)
    except TimeoutError:
        status = 0
    return status, events, done


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(200)]
    return [
        stem[: rng.choice([0, 50, 200])] + [rng.randrange(256) for _ in range(rng.randint(1, 80))]
        for _ in range(count)
    ]


async def settle(server: Server) -> dict[str, int]:
    for _ in range(200):
        ledger = await asyncio.to_thread(server.ledger)
        if not ledger["running"] and not ledger["waiting"]:
            return ledger
        await asyncio.sleep(0.1)
    raise AssertionError(f"sequences never ended: {ledger}")


@pytest.mark.slow
async def test_two_hundred_streams_with_random_disconnects_leak_nothing(server: Server) -> None:
    rng = random.Random(1)
    sizes = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        for wave in range(3):
            tasks = []
            for prompt in prompts(200, seed=wave):
                leave = rng.uniform(0.05, 3.0) if rng.random() < 0.4 else None
                request = body(prompt, rng.randint(1, 24), model=server.model)
                tasks.append(stream(session, server.url, request, leave))
            for status, events, done in await asyncio.gather(*tasks):
                assert status in (0, 200)
                assert not any("error" in event for event in events)
                assert done or status == 0
            ledger = await settle(server)
            assert ledger["slots_live"] == ledger["slots_tracking"] == ledger["pages_sequence"] == 0
            sizes.append(psutil.Process(server.engine_pid()).memory_info().rss)
    status, flushed = call(f"{server.admin}/admin/flush_cache", {})
    assert status == 200, flushed
    ledger = server.ledger()
    assert ledger["slots_free"] == ledger["slots_total"]
    assert sizes[2] < sizes[0] * 1.05 + (8 << 20), sizes


@pytest.mark.slow
async def test_a_killed_engine_ends_streams_with_an_error_and_comes_back(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        tasks = [
            asyncio.create_task(stream(session, server.url, body(prompt, 600, model=server.model)))
            for prompt in prompts(8)
        ]
        for _ in range(400):
            # As soon as tokens flow: a fast machine is through with all of them within a second or two.
            ledger = await asyncio.to_thread(server.ledger)
            if ledger["running"] and ledger["step"] > 20:
                break
        os.kill(server.engine_pid(), signal.SIGKILL)
        saw_503 = False
        for _ in range(40):
            async with session.get(f"{server.url}/readyz") as answer:
                saw_503 = saw_503 or answer.status == 503
            if saw_503:
                break
            await asyncio.sleep(0.05)
        assert saw_503
        results = await asyncio.gather(*tasks)
        for status, events, done in results:
            assert status == 503 or (status == 200 and "error" in events[-1] and not done) or done
        assert any(status == 200 and "error" in events[-1] for status, events, _ in results if events)
        began = time.monotonic()
        while True:
            async with session.get(f"{server.url}/readyz") as answer:
                if answer.status == 200:
                    break
            assert time.monotonic() - began < 60
            await asyncio.sleep(0.2)
        status, events, done = await stream(session, server.url, body([1, 2, 3], 4, model=server.model))
        assert status == 200
        assert done


@pytest.mark.slow
async def test_sigterm_under_load_lets_every_stream_finish(server: Server) -> None:
    async with aiohttp.ClientSession() as session:
        tasks = [
            asyncio.create_task(stream(session, server.url, body(prompt, 60, model=server.model)))
            for prompt in prompts(12)
        ]
        for _ in range(200):
            if (await asyncio.to_thread(server.ledger))["running"]:
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        server.terminate()
        await asyncio.sleep(0.3)
        for status, events, done in await asyncio.gather(*tasks):
            assert status == 200
            assert done
            assert events[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
    assert await asyncio.to_thread(server.wait, 60) == 0
