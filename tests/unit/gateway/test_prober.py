"""The prober before engines that are slow, odd, broken, or come and go."""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from eventually import until
from mamba_gateway.endpoints.endpoint import Endpoint
from mamba_gateway.endpoints.pool import Pool, Target
from mamba_gateway.endpoints.probe import FAILURES, Prober

GAUGES = "mambaserve_requests_running 3\nmambaserve_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"


class Probed:
    """An engine whose three pages say what the test wants, and that counts the looks at each."""

    def __init__(self) -> None:
        self.ready: tuple[int, bytes] = (200, b"{}")
        self.metrics: tuple[int, bytes] = (200, GAUGES.encode())
        self.models: tuple[int, bytes] = (200, b'{"object": "list", "data": [{"id": "m"}]}')
        self.slow = 0.0
        self.looks = {"/readyz": 0, "/metrics": 0, "/v1/models": 0}
        self.keys: list[str | None] = []
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get(path, self._page) for path in self.looks])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        self.looks[request.path] += 1
        if request.path == "/v1/models":
            self.keys.append(request.headers.get("Authorization"))
        await asyncio.sleep(self.slow)
        pages = {"/readyz": self.ready, "/metrics": self.metrics, "/v1/models": self.models}
        status, body = pages[request.path]
        return web.Response(status=status, body=body)


@pytest.fixture
async def engine() -> AsyncIterator[Probed]:
    made = Probed()
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
async def prober(pool: Pool) -> AsyncIterator[Callable[..., Prober]]:
    """Yield a factory called like `prober(interval=…)`; its probers end with the test."""
    made: list[Prober] = []
    async with aiohttp.ClientSession() as session:

        def start(**options: Any) -> Prober:
            made.append(Prober(session, pool, Random(2), **{"interval": 0.01, "timeout": 0.1, **options}))
            return made[-1]

        yield start
        for one in made:
            await one.close()


def only(pool: Pool) -> Endpoint:
    [endpoint] = pool.snapshot()
    return endpoint


async def test_a_good_look_brings_models_and_load(engine: Probed, pool: Pool, prober: Any) -> None:
    prober().set_targets([Target(engine.url)])
    assert not pool.synced
    await until(lambda: pool.synced)
    endpoint = only(pool)
    assert (endpoint.ready, endpoint.models) == (True, frozenset({"m"}))
    assert (endpoint.running, endpoint.waiting, endpoint.kv_usage) == (3, 2, 0.5)


@pytest.mark.parametrize(
    "metrics",
    [
        (500, b"oops"),
        (404, b""),
        (200, b""),
        (200, b"\xff\xfe\x00 not text"),
        (200, b"mambaserve_requests_running NaN\nmambaserve_requests_waiting +Inf\n"),
    ],
)
async def test_an_engine_without_sensible_metrics_is_ready_and_idle(
    metrics: tuple[int, bytes], engine: Probed, pool: Pool, prober: Any
) -> None:
    engine.metrics = metrics
    prober().set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    assert pool.reasons() == {}
    assert (only(pool).running, only(pool).waiting) == (0, 0)


@pytest.mark.parametrize(
    "models",
    [
        (401, b"{}"),
        (200, b"{"),
        (200, b'{"data": "m"}'),
        (200, b"[]"),
        (200, b'{"data": [{"id": "\xff"}]}'),
        (200, b'{"data": ' + b"[" * 50_000),
    ],
)
async def test_an_engine_that_does_not_tell_its_models_may_serve_any(
    models: tuple[int, bytes], engine: Probed, pool: Pool, prober: Any
) -> None:
    engine.models = models
    prober().set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    assert (only(pool).ready, only(pool).models) == (True, None)
    engine.models = (200, b'{"data": [{"id": "late"}, "no object"]}')
    await until(lambda: only(pool).models == frozenset({"late"}))


async def test_models_that_are_known_are_not_asked_for_each_time(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    prober(interval=0.002).set_targets([Target(engine.url)])
    await until(lambda: engine.looks["/readyz"] >= 12)
    assert engine.looks["/v1/models"] == 1


async def test_models_are_asked_for_with_the_gateway_s_own_key(engine: Probed, prober: Any) -> None:
    prober(key=lambda: b"key-1").set_targets([Target(engine.url)])
    await until(lambda: engine.keys)
    assert engine.keys[0] == "Bearer key-1"


@pytest.mark.parametrize(
    ("body", "reason", "draining"),
    [
        (b'{"status": "draining", "reason": "draining: 2 requests"}', "draining: 2 requests", True),
        (b'{"status": "loading", "reason": "loading: weights"}', "loading: weights", False),
        (b"", "/readyz says 503", False),
    ],
)
async def test_an_engine_that_is_not_ready_says_why(
    body: bytes, reason: str, draining: bool, engine: Probed, pool: Pool, prober: Any
) -> None:
    engine.ready = (503, body)
    prober().set_targets([Target(engine.url, "pod")])
    await until(lambda: pool.synced)
    assert pool.reasons() == {"pod": reason}
    assert only(pool).draining is draining
    assert engine.looks["/metrics"] == 0


async def test_a_ready_engine_that_is_slow_a_few_times_stays_ready(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    prober(timeout=0.03).set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    looks = engine.looks["/readyz"]
    engine.slow = 0.2
    await until(lambda: engine.looks["/readyz"] >= looks + FAILURES - 1)
    assert only(pool).ready
    await until(lambda: not only(pool).ready)
    assert engine.looks["/readyz"] >= looks + FAILURES
    assert "/readyz" in pool.reasons()[engine.url]
    engine.slow = 0
    await until(lambda: only(pool).ready)


async def test_an_engine_that_never_was_ready_needs_no_second_chance(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    engine.slow = 0.2
    prober(timeout=0.03).set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    assert engine.looks["/readyz"] == 1
    assert not only(pool).ready


async def test_an_engine_that_restarts_is_ready_again_by_itself(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    prober().set_targets([Target(engine.url)])
    await until(lambda: pool.synced and only(pool).ready)
    await engine.stop()
    await until(lambda: not only(pool).ready)
    assert only(pool).models == frozenset({"m"})
    await engine.start()
    await until(lambda: only(pool).ready)


async def test_an_engine_that_nothing_is_left_of_is_told_of_in_words(engine: Probed, prober: Any) -> None:
    await engine.stop()
    report = await prober().probe(engine.url, with_models=False)
    assert "Connection refused" in report.reason


async def test_targets_that_go_are_looked_at_no_more_and_those_that_stay_are(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    other = Probed()
    await other.start()
    try:
        one = prober()
        one.set_targets([Target(engine.url), Target(other.url)])
        await until(lambda: pool.synced)
        one.set_targets([Target(other.url, draining=True)])
        looks = engine.looks["/readyz"]
        before = other.looks["/readyz"]
        await until(lambda: other.looks["/readyz"] >= before + 3)
        assert engine.looks["/readyz"] <= looks + 1
        assert only(pool).draining
    finally:
        await other.stop()


async def test_after_the_end_nothing_is_looked_at(engine: Probed, pool: Pool, prober: Any) -> None:
    one = prober()
    one.set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    await one.close()
    looks = engine.looks["/readyz"]
    await asyncio.sleep(0.05)
    assert engine.looks["/readyz"] == looks


async def test_models_are_read_anew_as_soon_as_their_revision_changes(
    engine: Probed, pool: Pool, prober: Any
) -> None:
    engine.ready = (200, b'{"models_revision": 1}')
    prober().set_targets([Target(engine.url)])
    await until(lambda: pool.synced)
    card = '{"id": "sql", "parent": "m", "fingerprint": "%s"}'
    engine.models = (200, b'{"object": "list", "data": [{"id": "m"}, %s]}' % (card % "f").encode())
    engine.ready = (200, b'{"models_revision": 2}')
    await until(lambda: pool.serves("sql"))
    assert (pool.adapter_of("sql"), pool.adapter_of("m"), pool.adapter_of(None)) == ("f", "", "")
    assert [endpoint.serves("sql") for endpoint in pool.snapshot()] == [True]
    assert engine.looks["/v1/models"] == 2
