"""The ledger of real processes: sums by key are those of engines, through killed engines and gateways."""

import asyncio
import json
import os
import random
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_api import ApiProcess, serving
from eventually import PATIENCE, wait_until
from matrix_size import LARGE
from servers import Command
from tiny_model import write_model

REQUESTS = 10_000 if LARGE else 100
AT_ONCE = 16
KEYS = ("alice", "bob", "carol")
KINDS = ("requests", "prompt_tokens", "resumed_tokens", "output_tokens", "device_seconds")
TOTALS = {
    "prompt_tokens": "mambaserve_prompt_tokens_total",
    "resumed_tokens": "mambaserve_cached_tokens_total",
    "output_tokens": "mambaserve_generated_tokens_total",
}
"""Counters of an engine that do not know keys."""
Sums = Counter[tuple[str, str]]


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[list[ApiProcess]]:
    model = write_model(tmp_path / "tiny")
    with ExitStack() as stack:
        yield [stack.enter_context(serving(model, script={"charges": True})) for _ in range(2)]


class Gateway(Command):
    """`mambaserve gateway` with three keys, whose ledger is a file."""

    def __init__(self, engines: list[ApiProcess], folder: Path) -> None:
        keys = folder / "keys"
        keys.write_text("".join(f"sk-{key} {key}\n" for key in (*KEYS, "finance")))
        backends = [word for api in engines for word in ("--backend", api.url)]
        super().__init__(
            "gateway", *backends, "--port", "0", "--api-key-file", str(keys), "--usage-reader", "finance",
            "--usage-file", str(folder / "ledger.json"), "--price-device-hour", "3.6",
        )  # fmt: skip
        self.url = self.wait_for(r"gateway ready at (http://\S+)")[1]


def counted(api: ApiProcess) -> Sums:
    """Return what the engine has counted by key, and in all under the key ""."""
    sums: Sums = Counter()
    for family in text_string_to_metric_families(api.call("GET", "/metrics").body.decode()):
        for sample in family.samples:
            for kind in KINDS:
                if sample.name == f"mambaserve_usage_{kind}_total":
                    sums[sample.labels["key"], kind] += sample.value
                if sample.name == TOTALS.get(kind):
                    sums["", kind] += sample.value
    return sums


def shown(gateway: Gateway) -> Sums:
    """Return the ledger by key, and its sums under the key ""."""
    yesterday = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    query = urllib.request.Request(f"{gateway.url}/v1/usage?since={yesterday}")
    query.add_header("Authorization", "Bearer sk-finance")
    with urllib.request.urlopen(query, timeout=PATIENCE) as answer:
        report = json.loads(answer.read())
    lines = [*report["data"], report["total"]]
    assert report["total"]["cost"] == pytest.approx(report["total"]["device_seconds"] / 1000)
    return Counter({(line["name"], kind): line[kind] for line in lines for kind in KINDS})


async def load(url: str, requests: int, rng: random.Random, *, fails: bool) -> Counter[str]:
    """Send requests of all keys: some are streams, some clients leave; return the statuses."""
    statuses: Counter[str] = Counter()
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        # One request ends the engine process under it, which fails all others there.
        salt = "die" if fails and number == requests // 2 else ""
        body: dict[str, Any] = {
            "model": "tiny", "prompt": "one two three " * rng.randint(1, 5), "max_tokens": rng.randint(3, 9),
            "stream": rng.random() < 0.5, "cache_salt": salt,
        }  # fmt: skip
        headers = {"Authorization": f"Bearer sk-{KEYS[number % 3]}"}
        leaves = number % 10 == 7
        async with turn:
            try:
                async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                    statuses[str(answer.status)] += 1
                    if not leaves:
                        await answer.read()
            except aiohttp.ClientError:
                statuses["broken"] += 1

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(number) for number in range(requests)))
    return statuses


def is_close(ledger: Sums, counters: Sums) -> bool:
    """Return whether all sums by key and the totals agree within a thousandth."""
    by_key = {place: value for place, value in counters.items() if place[0]}
    return all(abs(ledger[place] - value) <= 0.001 * value for place, value in by_key.items())


@pytest.mark.slow
def test_sums_by_key_are_the_engines_counters_through_a_killed_engine_retries_and_a_killed_gateway(
    engines: list[ApiProcess], tmp_path: Path
) -> None:
    rng = random.Random(42)
    with ExitStack() as stack:
        first = stack.enter_context(Gateway(engines, tmp_path))
        statuses = asyncio.run(load(first.url, REQUESTS // 2, rng, fails=True))
        assert statuses["200"] >= REQUESTS // 2 - 3 * AT_ONCE
        wait_until(lambda: all(api.is_ready() for api in engines), "the engine that ended is back")
        wait_until(lambda: is_close(shown(first), counted(engines[0]) + counted(engines[1])), "the ledger")
        wait_until((tmp_path / "ledger.json").exists, "its file")
        first.process.send_signal(signal.SIGKILL)
        first.wait()

        second = stack.enter_context(Gateway(engines, tmp_path))
        asyncio.run(load(second.url, REQUESTS // 2, rng, fails=False))
        gone = Counter[tuple[str, str]]()

        def settled() -> bool:
            nonlocal gone
            gone = counted(engines[1])
            return is_close(shown(second), counted(engines[0]) + gone)

        wait_until(settled, "the ledger")
        os.kill(engines[1].process.pid, signal.SIGKILL)
        engines[1].wait_exit()
        asyncio.run(load(second.url, REQUESTS // 10, rng, fails=False))
        wait_until(lambda: is_close(shown(second), counted(engines[0]) + gone), "the ledger")

        ledger, counters = shown(second), counted(engines[0]) + gone
    for kind in TOTALS:
        # Counters that know no keys are those of the keys together.
        assert sum(ledger[key, kind] for key in KEYS) == pytest.approx(counters["", kind], rel=0.001)
    assert ledger["", "device_seconds"] == pytest.approx(
        sum(counters[key, "device_seconds"] for key in KEYS), rel=0.001
    )
    assert all(ledger[key, kind] > 0 for key in KEYS for kind in KINDS)
    if LARGE:
        print(json.dumps({"/".join(place): (ledger[place], counters[place]) for place in counters}))
