"""Tokenizers of the engines: fetched once, renewed when they change, and done without where there is none."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.prompts import text_processors
from mamba_gateway.prompts.text_processors import MAX_UNUSED, REFRESH_SECONDS, RETRY_SECONDS, TextProcessors
from mamba_text.text_archive import TextArchive

MODEL = Path(__file__).parents[3] / "server/mamba_server/builtin/tiny-recall"
ARCHIVE = TextArchive.pack(MODEL)


class Engine:
    """Answers `/v1/tokenizer` as the test says, and remembers how it was asked."""

    def __init__(self) -> None:
        self.status, self.data, self.fingerprint = 200, ARCHIVE.data, ARCHIVE.fingerprint
        self.requests: list[tuple[str | None, str | None]] = []
        self.sent = 0

    async def start(self) -> None:
        app = web.Application()
        app.add_routes([web.get("/v1/tokenizer", self._page)])
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _page(self, request: web.Request) -> web.Response:
        self.requests.append((request.headers.get("Authorization"), request.headers.get("If-None-Match")))
        tag = {"ETag": f'"{self.fingerprint}"'}
        if self.status == 200 and tag["ETag"] in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers=tag)
        if self.status != 200:
            return web.Response(status=self.status)
        self.sent += 1
        return web.Response(body=self.data, headers=tag)


class Gateway:
    def __init__(self, session: aiohttp.ClientSession, *engines: Engine) -> None:
        self.now, self.engines, self.pool = 1000.0, engines, Pool()
        self.texts = TextProcessors(session, self.pool, lambda: self.now, lambda: b"backend-key")
        self.pool.set_targets(Target(engine.url) for engine in engines)
        for engine in engines:
            self.report(engine)

    def report(self, engine: Engine, ready: bool = True, model: str = "m") -> None:
        self.pool.report(engine.url, ProbeReport(ready=ready, models=({"id": model},)))


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    made = [Engine(), Engine()]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def test_the_tokenizer_is_sent_once_and_the_other_engines_only_say_that_they_have_the_same(
    engines: list[Engine], session: aiohttp.ClientSession
) -> None:
    gateway = Gateway(session, *engines)
    assert gateway.texts.for_model("m") is None
    for _ in range(3):
        await gateway.texts.refresh()
    text = gateway.texts.for_model("m")
    assert text is not None
    assert text.processor.tokenizer.encode("hello")
    assert gateway.texts.for_model("another model") is None
    assert sorted(engine.sent for engine in engines) == [0, 1]
    assert [len(engine.requests) for engine in engines] == [1, 1]
    assert {asked[0] for engine in engines for asked in engine.requests} == {"Bearer backend-key"}
    gateway.now += REFRESH_SECONDS
    await gateway.texts.refresh()
    assert [len(engine.requests) for engine in engines] == [2, 2]
    assert gateway.texts.for_model("m") is text


async def test_an_engine_that_comes_back_with_another_tokenizer_is_asked_at_once(
    engines: list[Engine], session: aiohttp.ClientSession
) -> None:
    engine = engines[0]
    gateway = Gateway(session, engine)
    await gateway.texts.refresh()
    before = gateway.texts.for_model("m")
    gateway.report(engine, ready=False)
    await gateway.texts.refresh()
    assert gateway.texts.for_model("m") is None
    engine.fingerprint = "another"
    gateway.report(engine)
    await gateway.texts.refresh()
    after = gateway.texts.for_model("m")
    assert after is not None
    assert after is not before
    assert engine.sent == 2


@pytest.mark.parametrize("how", ["404", "500", "no zip", "too large"])
async def test_without_a_usable_tokenizer_there_is_none_and_it_is_asked_for_again_later(
    how: str, engines: list[Engine], session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines[0]
    if how.isdigit():
        engine.status = int(how)
    elif how == "no zip":
        engine.data = b"x"
    else:
        monkeypatch.setattr(text_processors, "MOST_PACKED_BYTES", len(ARCHIVE.data) - 1)
    gateway = Gateway(session, engine)
    await gateway.texts.refresh()
    await gateway.texts.refresh()
    assert gateway.texts.for_model("m") is None
    assert len(engine.requests) == 1
    gateway.now += REFRESH_SECONDS if how == "404" else RETRY_SECONDS
    await gateway.texts.refresh()
    assert len(engine.requests) == 2


async def test_tokenizers_that_nobody_has_any_more_are_let_go(
    engines: list[Engine], session: aiohttp.ClientSession
) -> None:
    engine = engines[0]
    gateway = Gateway(session, engine)
    for number in range(MAX_UNUSED + 4):
        engine.fingerprint = f"f{number}"
        gateway.now += REFRESH_SECONDS
        await gateway.texts.refresh()
    engine.requests.clear()
    gateway.now += REFRESH_SECONDS
    await gateway.texts.refresh()
    [(_, offered)] = engine.requests
    assert offered is not None
    assert len(offered.split(", ")) == MAX_UNUSED + 1
