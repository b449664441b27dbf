"""Connections to engines: what is made of any split of the bytes, and which connections are used again."""

import asyncio
import contextlib
import contextvars
import gc
import itertools
import ssl
import weakref
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_gateway.endpoint_picker.certificate import self_signed
from mamba_gateway.upstream.connection import (
    BUFFERED_BYTES,
    HEAD_BYTES,
    PIECE_BYTES,
    ConnectionLost,
    EngineUnreachable,
    IdleTimeout,
    UpstreamConnection,
)
from mamba_gateway.upstream.connector import (
    IDLE_SECONDS,
    MAX_STARTS,
    Origin,
    upstream_connector,
)
from mamba_gateway.upstream.deadlines import Deadlines
from raw_engine import KEPT, OK, SSE, RawEngine, says

CHUNKED = SSE + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "a length": KEPT,
    "a length and the last answer": OK,
    "no body": b"HTTP/1.1 204 No Content\r\nX-A: 1\r\nX-A: 2\r\n\r\n",
    "an empty body": b"HTTP/1.1 503 Later\r\nContent-Length: 0\r\n\r\n",
    "chunks": CHUNKED + b"5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: 1\r\n\r\n",
    "until the connection ends": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "an old version": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "a provisional one before": b"HTTP/1.1 100 Continue\r\nX-P: 1\r\n\r\n" + KEPT,
    "more than was asked for": KEPT + KEPT,
    "rubbish behind": KEPT + b"\x00\xffrubbish\r\n\r\n",
    "broken off": KEPT[:-1],
    "broken off in a chunk": CHUNKED + b"5\r\nhel",
    "no number of a length": CHUNKED + b"5\r\nhello\r\nzz\r\n",
    "two lengths": KEPT.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n"),
    "a length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n") + b"0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switch\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n",
    "headers beyond every limit": KEPT.replace(b"\r\n\r\n", b"\r\nX: " + b"x" * HEAD_BYTES + b"\r\n\r\n"),
}  # fmt: skip


class Wire:
    """The transport of a connection that is fed by the test."""

    def __init__(self) -> None:
        self.closed = False
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def _outcome(pieces: list[bytes]) -> tuple[Any, ...]:
    """Return the status, headers, body, how it ended, and whether another request may follow."""
    wire: Any = Wire()
    freed: list[UpstreamConnection] = []
    connection = UpstreamConnection(Deadlines(asyncio.get_running_loop(), 30.0), freed.append)
    connection.connection_made(wire)
    body, ended, response = b"", "well", None

    async def ask() -> None:
        nonlocal body, ended, response
        try:
            response, part = await connection.send(b"HEAD", b"")
            while part:
                body += part
                part = await response.read()
        except ConnectionLost:
            ended = "lost"

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    for piece in pieces:
        if not wire.closed:
            connection.data_received(piece)
    usable = bool(freed) and connection.usable
    connection.connection_lost(None)
    await asyncio.wait_for(asking, 1)
    return response and response.status, response and response.headers, body, ended, usable


def outcome(pieces: list[bytes]) -> tuple[Any, ...]:
    return asyncio.run(_outcome(pieces))


def _cut(data: bytes, at: list[int]) -> list[bytes]:
    places = [0, *sorted({place % len(data) for place in at} - {0}), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


@settings(max_examples=60)
@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 300), max_size=12))
def test_an_answer_is_the_same_in_whatever_pieces_it_comes(name: str, at: list[int]) -> None:
    whole = outcome([ANSWERS[name]])
    assert outcome(_cut(ANSWERS[name], at)) == whole
    if name in ("a length", "chunks", "an empty body", "no body", "a provisional one before"):
        assert whole[3:] == ("well", True)
    else:
        assert whole[4] is False


async def test_what_comes_is_passed_on_in_the_moment_in_which_it_comes_and_in_order() -> None:
    wire: Any = Wire()
    connection = UpstreamConnection(Deadlines(asyncio.get_running_loop(), 30.0), lambda _: None)
    connection.connection_made(wire)
    asking = asyncio.create_task(connection.send(b"HEAD", b""))
    await asyncio.sleep(0)
    connection.data_received(CHUNKED + b"1\r\na\r\n")
    response, first = await asking
    taken: list[bytes] = []

    def take(part: bytes) -> bytes:
        if b"!" in part:
            raise ValueError("a defect")
        if b"?" in part:
            return part
        taken.append(part)
        return b""

    passing = asyncio.create_task(response.consume(take))
    await asyncio.sleep(0)
    connection.data_received(b"1\r\nb\r\n1\r\nc\r\n")
    connection.data_received(b"1\r\nd\r\n")
    assert (first, taken) == (b"a", [b"bc", b"d"])
    connection.data_received(b"1\r\n?\r\n")
    connection.data_received(b"1\r\ne\r\n")
    assert await passing == b"?"
    assert taken == [b"bc", b"d"]  # what could not be taken is first to be sent
    passing = asyncio.create_task(response.consume(take))
    await asyncio.sleep(0)
    assert taken == [b"bc", b"d", b"e"]
    connection.data_received(b"1\r\n!\r\n")
    with pytest.raises(ValueError, match="a defect"):
        await passing
    assert wire.closed


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(ANSWERS)),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4),
    st.lists(st.integers(0, 300), max_size=4),
)
def test_spoiled_bytes_end_in_an_answer_or_a_lost_connection_and_never_in_a_defect(
    name: str, changes: list[tuple[int, int]], at: list[int]
) -> None:
    spoiled = bytearray(ANSWERS[name])
    for place, value in changes:
        spoiled[place % len(spoiled)] = value
    assert outcome(_cut(bytes(spoiled), at)) == outcome([bytes(spoiled)])


async def ask(connector: Any, engine: RawEngine, body: bytes = b"{}") -> tuple[int, bytes]:
    response, part = await connector.send(engine.url, "POST /v1/completions", (), body)
    whole = b""
    while part:
        whole += part
        part = await response.read()
    return response.status, whole


class Lasting(RawEngine):
    """Reads requests until the client goes."""

    connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append((head, await reader.readexactly(2)))
                writer.write(KEPT)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left.set()
        finally:
            writer.close()


async def test_a_connection_serves_one_request_after_the_other_until_it_was_idle_for_too_long() -> None:
    async with upstream_connector(2.0, 30.0) as connector, Lasting(says()) as engine:
        for _ in range(3):
            assert await ask(connector, engine) == (200, b"{}")
        assert (engine.connections, len(engine.requests)) == (1, 3)
        await asyncio.sleep(IDLE_SECONDS + 1)
        assert engine.left.is_set()
        assert await ask(connector, engine) == (200, b"{}")
        assert engine.connections == 2


async def test_requests_at_once_have_connections_of_their_own_and_all_are_kept() -> None:
    async with upstream_connector(2.0, 30.0) as connector, Lasting(says()) as engine:
        for _ in range(2):
            await asyncio.gather(*(ask(connector, engine) for _ in range(5)))
        assert (engine.connections, len(engine.requests)) == (5, 10)


async def test_a_connection_keeps_nothing_of_the_request_that_it_was_made_for() -> None:
    class Held:
        pass

    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("request")

    async def request() -> weakref.ref[Held]:
        held = Held()
        variable.set(held)
        await ask(connector, engine)
        return weakref.ref(held)

    async with upstream_connector(1.0, 1.0) as connector, Lasting(says()) as engine:
        held = await asyncio.create_task(request())
        await asyncio.sleep(IDLE_SECONDS / 2)  # cancelled timers are gone, too
        gc.collect()
        assert held() is None
        assert await ask(connector, engine) == (200, b"{}")
        assert engine.connections == 1


async def test_of_an_answer_that_nobody_reads_only_a_little_is_taken_and_the_engine_is_not_silent() -> None:
    sent = 0

    async def torrent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        length = 64 * 1024 * 1024
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length)
        while sent < length:
            writer.write(bytes(1024 * 1024))
            sent += 1024 * 1024
            await writer.drain()

    async with upstream_connector(2.0, idle_timeout=5.0) as connector, RawEngine(torrent) as engine:
        response, part = await connector.send(engine.url, "POST /x", (), b"{}")
        await asyncio.sleep(60)
        assert sent < 32 * 1024 * 1024
        whole = len(part)
        while part := await response.read():
            assert len(part) < 16 * BUFFERED_BYTES
            whole += len(part)
        assert whole == sent == 64 * 1024 * 1024


async def test_an_engine_that_takes_nothing_of_a_large_body_is_silent() -> None:
    class Deaf(RawEngine):
        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            await asyncio.Event().wait()

    async with upstream_connector(2.0, idle_timeout=5.0) as connector, Deaf(says()) as engine:
        with pytest.raises(IdleTimeout):
            await ask(connector, engine, bytes(16 * 1024 * 1024))


async def test_who_answers_before_the_end_of_a_large_body_does_not_get_the_rest_nor_another_request() -> None:
    class Hasty(RawEngine):
        got = 0

        async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Large\r\nContent-Length: 2\r\n\r\nno")
            with contextlib.suppress(ConnectionError):
                while part := await reader.read(PIECE_BYTES):
                    self.got += len(part)
            self.left.set()

    async with upstream_connector(2.0, 30.0) as connector, Hasty(says()) as engine:
        assert await ask(connector, engine, bytes(4 * 1024 * 1024)) == (413, b"no")
        await asyncio.sleep(1)
        assert engine.left.is_set()
        assert engine.got < 4 * 1024 * 1024


@pytest.mark.parametrize("pair", [(b"x-a", b"1\r\nx-b: 2"), (b"x-a\n", b"1"), (b"x-a", b"1\r")])
async def test_no_header_can_bring_another_one(pair: tuple[bytes, bytes]) -> None:
    async with upstream_connector(2.0, 30.0) as connector, RawEngine(says(OK)) as engine:
        with pytest.raises(ValueError, match="line end"):
            await connector.send(engine.url, "POST /x", [pair], b"{}")
        assert engine.requests == []


async def test_the_name_and_password_and_the_path_of_a_base_url_are_used() -> None:
    async with upstream_connector(2.0, 30.0) as connector, RawEngine(says(OK)) as engine:
        base = engine.url.replace("http://", "http://me:p%40ss@") + "/below"
        response, _ = await connector.send(base, "POST /x?y=%20", (), b"{}")
        head = engine.requests[0][0]
        assert response.status == 200
        assert head.startswith(b"POST /below/x?y=%20 HTTP/1.1\r\n")
        assert b"\r\nauthorization: Basic bWU6cEBzcw==\r\n" in head
        assert b"\r\nhost: " + engine.url.removeprefix("http://").encode() + b"\r\n" in head


async def test_an_engine_over_tls_is_asked_if_its_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = self_signed("localhost")
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "certificate").write_bytes(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    async with upstream_connector(2.0, 30.0) as connector:
        with pytest.raises(EngineUnreachable, match="certificate"):
            await connector.send(url, "POST /x", (), b"{}")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate"))
    async with upstream_connector(2.0, 30.0) as connector:
        response, first = await connector.send(url, "POST /x", (), b"{}")
        assert (response.status, first) == (200, b"{}")
    server.close()


async def test_an_engine_at_an_address_of_ipv6_that_is_not_there_is_told_in_brackets() -> None:
    async with upstream_connector(2.0, 30.0) as connector:
        with pytest.raises(EngineUnreachable, match=r"Connect to \[::1\]:1 failed"):
            await connector.send("http://[::1]:1", "POST /x", (), b"{}")


async def test_what_is_kept_for_an_engine_is_bounded_whatever_is_asked() -> None:
    origin = Origin.of("http://engine:8000/base")
    for number in range(1000):
        asked = origin.start(f"POST /v1/{number}")
        assert asked == f"POST /base/v1/{number} HTTP/1.1\r\nhost: engine:8000".encode()
        assert origin.start(f"POST /v1/chat?n={number}").startswith(
            f"POST /base/v1/chat?n={number} ".encode()
        )
    kept = [name for name in gc.get_referents(origin) if isinstance(name, dict)]
    assert 0 < max(map(len, kept)) <= MAX_STARTS
