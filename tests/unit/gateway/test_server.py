"""The serving process in one loop: sockets, the ready line's URL, and how a drain ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from eventually import until
from mamba_edge.listener import listen, url_of
from mamba_gateway.process.server import serve
from mamba_gateway.settings import GatewaySettings
from raw_engine import OK, SSE, RawEngine, says

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 13\r\n\r\n"
BODY = b'{"model":"m"}'
LOADING = b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Running:
    """A gateway under way."""

    def __init__(self, url: str, stop: asyncio.Event, task: "asyncio.Task[int]") -> None:
        self.url, self.stop, self.task = url, stop, task

    async def connect(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        writer.writelines(parts)
        await writer.drain()
        return reader, writer

    async def ended(self, seconds: float = 8.0) -> int:
        """Stop it; its exit code."""
        self.stop.set()
        async with asyncio.timeout(seconds):
            return await self.task


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def gateway() -> AsyncIterator[Start]:
    """Yield a factory: `await gateway(drain_timeout=0.1)`; the default engine is never ready."""
    made: list[Running] = []

    async def start(**options: Any) -> Running:
        defaults = {"backend": ("http://127.0.0.1:9",), "port": 0, "hold_timeout": 30, "probe_interval": 0.05}
        where: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()
        settings = GatewaySettings(**{**defaults, **options})
        task = asyncio.create_task(serve(settings, where.set_result, stop=stop, rng=Random(7)))
        made.append(Running(await asyncio.wait_for(where, 5), stop, task))
        return made[-1]

    yield start
    for one in made:
        one.stop.set()
        await asyncio.gather(one.task, return_exceptions=True)


async def status_of(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(5):
        return int((await reader.readline()).split()[1])


async def test_a_drain_of_an_idle_gateway_ends_at_once_with_0(gateway: Start) -> None:
    one = await gateway(drain_timeout=60)
    begin = asyncio.get_running_loop().time()
    assert await one.ended() == 0
    assert asyncio.get_running_loop().time() - begin < 2


async def test_an_idle_connection_does_not_hold_up_a_drain(gateway: Start) -> None:
    one = await gateway(drain_timeout=60)
    reader, writer = await one.connect(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await status_of(reader) == 200
    silent_reader, silent = await one.connect()
    assert await one.ended(3) == 0
    assert await asyncio.wait_for(silent_reader.read(), 2) == b""
    for each in (writer, silent):
        each.close()


async def test_a_held_request_is_told_when_the_drain_is_over_and_so_is_the_caller(
    gateway: Start,
) -> None:
    one = await gateway(drain_timeout=0.1)
    reader, writer = await one.connect(HEAD, BODY)
    await asyncio.sleep(0.1)
    assert await one.ended() == 1
    assert await status_of(reader) == 503
    assert b'"draining"' in await reader.read()
    writer.close()


async def test_a_client_that_still_sends_at_the_end_of_the_drain_is_told_and_counts_as_cut(
    gateway: Start,
) -> None:
    one = await gateway(drain_timeout=0.1)
    reader, writer = await one.connect(HEAD, BODY[:5])
    await asyncio.sleep(0.05)
    begin = asyncio.get_running_loop().time()
    assert await one.ended() == 1
    assert asyncio.get_running_loop().time() - begin < 3
    assert await status_of(reader) == 503
    assert b'"draining"' in await reader.read()
    writer.close()


async def test_a_held_request_that_finds_its_engine_while_draining_is_answered(gateway: Start) -> None:
    loaded = asyncio.Event()

    async def speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(OK if loaded.is_set() else LOADING)(reader, writer)

    async with RawEngine(speech) as engine:
        one = await gateway(backend=(engine.url,), drain_timeout=20)
        reader, writer = await one.connect(HEAD, BODY)
        await asyncio.sleep(0.05)
        one.stop.set()
        await asyncio.sleep(0.05)
        refused, other = await one.connect(HEAD, BODY)
        assert await status_of(refused) == 503
        loaded.set()
        assert await status_of(reader) == 200
        assert await one.ended() == 0
        for each in (writer, other):
            each.close()


async def test_a_gateway_that_goes_takes_requests_until_none_has_come_and_lets_their_connections_go(
    gateway: Start,
) -> None:
    async with RawEngine(says(OK)) as engine:
        one = await gateway(backend=(engine.url,), drain_timeout=20, drain_quiet=0.2)
        kept_reader, kept = await one.connect(HEAD, BODY)
        async with asyncio.timeout(5):
            assert b"connection: close" not in await kept_reader.readuntil(b"\r\n\r\n")
        one.stop.set()
        await asyncio.sleep(0.05)
        kept.writelines((HEAD, BODY))
        async with asyncio.timeout(5):
            said = await kept_reader.read()  # to the end: the connection is closed
        assert b"HTTP/1.1 200 " in said
        assert b"connection: close" in said
        late, other = await one.connect(HEAD, BODY)
        assert await status_of(late) == 200
        assert await one.ended() == 0
        for each in (kept, other):
            each.close()


async def test_an_answer_under_way_when_the_gateway_goes_is_the_last_of_its_connection(
    gateway: Start,
) -> None:
    loaded = asyncio.Event()

    async def speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(OK if loaded.is_set() else LOADING)(reader, writer)

    async with RawEngine(speech) as engine:
        one = await gateway(backend=(engine.url,), drain_timeout=20, drain_quiet=0.2)
        reader, writer = await one.connect(HEAD, BODY)
        await asyncio.sleep(0.05)
        one.stop.set()
        await asyncio.sleep(0.05)
        loaded.set()
        async with asyncio.timeout(5):
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 200 ")
        assert await one.ended() == 0
        writer.close()


async def test_an_answer_that_has_promised_to_stay_open_when_the_gateway_goes_keeps_its_word(
    gateway: Start,
) -> None:
    rest = asyncio.Event()

    async def speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if engine.requests[-1][0].startswith(b"GET"):
            await says(OK)(reader, writer)
            return
        writer.write(SSE + b"Connection: close\r\n\r\ndata: 1\n\n")
        await rest.wait()
        writer.write(b"data: [DONE]\n\n")

    async with RawEngine(speech) as engine:
        one = await gateway(backend=(engine.url,), drain_timeout=20, drain_quiet=0.2, probe_interval=60)
        reader, writer = await one.connect(HEAD, BODY)
        async with asyncio.timeout(5):
            first = await reader.readuntil(b"data: 1\n\n")
        one.stop.set()
        await asyncio.sleep(0.4)  # longer than it has to be quiet: it waits for what is under way
        rest.set()
        async with asyncio.timeout(5):
            await reader.readuntil(b"0\r\n\r\n")
            writer.writelines((HEAD, BODY))
            second = await reader.readuntil(b"data: 1\n\n")
        assert b"connection: close" not in first
        assert second.startswith(b"HTTP/1.1 200 ")
        assert b"connection: close" in second
        assert await one.ended() == 0
        writer.close()


async def test_a_gateway_that_goes_leaves_what_it_took_last_time_to_finish(gateway: Start) -> None:
    loaded = asyncio.Event()

    async def speech(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await says(OK if loaded.is_set() else LOADING)(reader, writer)

    async with RawEngine(speech) as engine:
        one = await gateway(backend=(engine.url,), drain_timeout=1.0, drain_quiet=60)
        reader, writer = await one.connect(HEAD, BODY)
        one.stop.set()
        await asyncio.sleep(0.6)
        refused, other = await one.connect(HEAD, BODY)
        assert await status_of(refused) == 503
        loaded.set()
        assert await status_of(reader) == 200
        assert await one.ended() == 0
        for each in (writer, other):
            each.close()


async def test_pages_of_the_origins_it_was_given_may_call(gateway: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("key-1\n")
    one = await gateway(cors_origin=("https://chat.example.org",), api_key_file=str(tmp_path / "keys"))
    reader, writer = await one.connect(
        b"OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: x\r\nOrigin: https://chat.example.org\r\n"
        b"Access-Control-Request-Method: POST\r\n\r\n"
    )
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"access-control-allow-origin: https://chat.example.org\r\n" in head.lower()
    writer.close()


async def test_a_stop_before_the_engines_were_looked_at_does_not_wait_for_them() -> None:
    async with RawEngine(says(hold=True)) as mute:
        settings = GatewaySettings(backend=(mute.url,), port=0, probe_timeout=60)
        stop = asyncio.Event()
        told: list[str] = []
        task = asyncio.create_task(serve(settings, told.append, stop=stop))
        await until(lambda: mute.requests)
        assert told == []
        begin = asyncio.get_running_loop().time()
        stop.set()
        assert await asyncio.wait_for(task, 8) == 0
        assert asyncio.get_running_loop().time() - begin < 2


async def test_an_address_that_is_taken_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = GatewaySettings(backend=("http://127.0.0.1:9",), port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await serve(settings, lambda _: None)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_url_of_a_socket_can_be_opened(host: str) -> None:
    try:
        bound = listen(host, 0)
    except OSError:
        pytest.skip(f"{host} is not an address of this machine")
    with bound:
        shown = f"[{host}]" if ":" in host else host
        assert url_of(bound) == f"http://{shown}:{bound.getsockname()[1]}"
        socket.create_connection(bound.getsockname()[:2], timeout=1).close()
