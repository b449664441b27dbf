"""Real servers under load: disconnects leak nothing, a killed engine comes back, a drain loses none."""

import asyncio
import contextlib
import json
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from eventually import PATIENCE, until, wait_until
from servers import Server, call
from testmodels.checkpoints import random_nemotron_h

# The limit is that of each test.
FOR_EVER = aiohttp.ClientTimeout(total=None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_nemotron_h(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server(model: Path) -> Iterator[Server]:
    with Server(model, "--arena-bytes", "64Mi", "--max-model-len", "1024", fresh=True) as running:
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


@dataclass
class Stream:
    """Answer so far of a streamed request."""

    status: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def error(self) -> dict[str, Any] | None:
        """The error that an answer begun ends with."""
        return self.events[-1].get("error") if self.events else None


LEAVES_AT_ONCE = 0.05
"""Seconds after which a client leaves that waits for nothing. Whatever has happened by then is fine."""


async def read(
    into: Stream,
    session: aiohttp.ClientSession,
    url: str,
    request: dict[str, object],
    most: int | None = None,
) -> Stream:
    """Follow a stream to its end; leaves without a word after `most` events, with 0 once it has asked."""

    async def follow() -> None:
        async with session.post(f"{url}/v1/completions", json=request) as answer:
            into.status = answer.status
            async for line in answer.content:
                if line.startswith(b"data: [DONE]"):
                    into.done = True
                elif line.startswith(b"data: "):
                    into.events.append(json.loads(line[6:]))
                    if len(into.events) == most:
                        return

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(follow(), LEAVES_AT_ONCE if most == 0 else None)
    return into


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    stem = [rng.randrange(256) for _ in range(200)]
    return [
        stem[: rng.choice([0, 50, 200])] + [rng.randrange(256) for _ in range(rng.randint(1, 80))]
        for _ in range(count)
    ]


@pytest.mark.slow
async def test_two_hundred_streams_with_random_disconnects_leak_nothing(server: Server) -> None:
    rng = random.Random(1)
    sizes = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=FOR_EVER) as session:
        for wave in range(3):
            tasks, leaving = [], []
            for prompt in prompts(200, seed=wave):
                leaving.append(rng.choice([0, 1, 3, 10]) if rng.random() < 0.4 else None)
                request = body(prompt, rng.randint(1, 24), model=server.model)
                tasks.append(read(Stream(), session, server.url, request, leaving[-1]))
            for most, answer in zip(leaving, await asyncio.gather(*tasks), strict=True):
                assert answer.error is None
                assert answer.status == 200 or most == 0
                assert answer.done or most is not None
            await asyncio.to_thread(server.wait_until_empty)
            sizes.append(psutil.Process(server.engine_pid()).memory_info().rss)
    status, flushed = call(f"{server.admin}/admin/flush_cache", {})
    assert status == 200, flushed
    ledger = server.ledger()
    assert ledger["slots_free"] == ledger["slots_total"]
    # What leaks does so in every wave; a wave that was a little wider than those before it grows once.
    assert min(later - before for before, later in pairwise(sizes)) < 8 << 20, sizes


@pytest.mark.slow
async def test_a_killed_engine_ends_streams_with_an_error_and_comes_back(server: Server) -> None:
    tokens = 600
    async with aiohttp.ClientSession(timeout=FOR_EVER) as session:
        streams = [Stream() for _ in range(8)]
        tasks = [
            asyncio.create_task(read(each, session, server.url, body(prompt, tokens, model=server.model)))
            for each, prompt in zip(streams, prompts(8), strict=True)
        ]
        # As soon as tokens flow: a fast machine is through with all of them within a second or two.
        await until(lambda: any(len(each.events) >= 5 for each in streams))
        os.kill(server.engine_pid(), signal.SIGKILL)
        await asyncio.gather(*tasks)
        assert await asyncio.to_thread(ready, server) == 503
        lost = [each for each in streams if each.error is not None]
        for each in streams:
            if each in lost:
                assert (each.status, each.error["code"]) == (200, "engine_lost")
                assert each.done
            elif each.status == 503:
                assert each.events == []
            else:
                assert finished(each)
        assert lost
        await asyncio.to_thread(wait_until, lambda: ready(server) == 200, "the next engine")
        answer = await read(Stream(), session, server.url, body([1, 2, 3], 4, model=server.model))
        assert finished(answer)


def ready(server: Server) -> int:
    return call(f"{server.url}/readyz")[0]


def finished(stream: Stream) -> bool:
    """Return whether the answer is complete."""
    return stream.done and stream.events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.slow
async def test_sigterm_under_load_lets_every_stream_finish(server: Server) -> None:
    async with aiohttp.ClientSession(timeout=FOR_EVER) as session:
        streams = [Stream() for _ in range(12)]
        tasks = [
            asyncio.create_task(read(each, session, server.url, body(prompt, 300, model=server.model)))
            for each, prompt in zip(streams, prompts(12), strict=True)
        ]
        # Each was taken in; the last of them has hardly begun.
        await until(lambda: all(each.events for each in streams))
        server.terminate()
        await asyncio.gather(*tasks)
        for each in streams:
            assert each.status == 200
            assert finished(each)
    assert await asyncio.to_thread(server.wait, PATIENCE) == 0
