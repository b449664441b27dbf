"""The server on a real socket: what clients write that is no request, half of one, or more than one."""

import asyncio
import contextlib
import json
import weakref
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from eventually import turns, until
from mamba_edge.connection import connection_room
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.listener import listen
from scripted_engine import Api

TEXT = "/v1/completions"


class Served:
    """A server with one engine, and raw connections to it."""

    def __init__(self, api: Api, port: int) -> None:
        self.api, self.port = api, port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return reader, writer

    async def says(self, *parts: bytes, seconds: float = 5.0) -> bytes:
        """Return all that comes back until the server closes the connection."""
        reader, _ = await self.connect(*parts)
        async with asyncio.timeout(seconds):
            return await reader.read()

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@pytest.fixture
def limits() -> dict[str, Any]:
    return {}


@pytest.fixture
async def served(limits: dict[str, Any]) -> AsyncIterator[Served]:
    api = Api(**{"max_body_bytes": 2000, **limits})
    listener = listen("127.0.0.1", 0)
    server = HttpServer(api.app, last_bytes_seconds=3, limits=api.serving.settings)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    made = Served(api, listener.getsockname()[1])
    await until(lambda: server.started)
    yield made
    made.close()
    server.should_exit = True
    await running
    listener.close()


def request(
    body: bytes, *headers: str, path: str = TEXT, version: str = "1.1", length: int | None = None
) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", "Content-Type: application/json", *headers]
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def request_head(*headers: str) -> bytes:
    return request(b"", *headers)


def prompt(text: str = "x", **fields: object) -> bytes:
    return json.dumps({"prompt": text, "max_tokens": 1, **fields}).encode()


async def finish_all(api: Api, count: int) -> None:
    """Answer the requests the engine gets, in order."""
    for number in range(count):
        await until(partial(api.engine.has_requests, number + 1))
        api.engine.delta(f"answer{number}", of=number, finish_reason="length")


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
NO_REQUESTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello over TLS\r\n\r\n",
    "a header without a name": HEAD + b": y\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length that is no number": HEAD + b"Content-Length: -2\r\n\r\n{}",
    "a chunk that is none": request(b"zz\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
}


@pytest.mark.parametrize("what", NO_REQUESTS)
async def test_what_is_no_request_is_400_and_the_next_client_is_served(what: str, served: Served) -> None:
    answer = await served.says(NO_REQUESTS[what])
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
    assert served.api.engine.process.sent == []
    await until(lambda: served.api.serving.drain.under_way == 0)
    alive = await served.says(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert alive.endswith(b'{"status":"alive"}')


LONG_HEADS = {
    "one long header": HEAD + b"X-Long: " + b"x" * 200_000 + b"\r\n\r\n",
    "a header without end": HEAD + b"X-Long: " + b"x" * 400_000,
    "many headers": HEAD + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n",
    "a long path": b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long trailers": request_head("Transfer-Encoding: chunked")
    + b"0\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n",
}  # fmt: skip


@pytest.mark.parametrize("what", LONG_HEADS)
async def test_headers_beyond_the_limit_are_431_and_end_the_connection(what: str, served: Served) -> None:
    with contextlib.suppress(ConnectionError):
        answer = await served.says(LONG_HEADS[what])
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"connection: close\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"
    await until(lambda: served.api.answered() in ({}, {(TEXT, "499"): 1}))
    assert served.api.engine.process.sent == []
    assert b"alive" in await served.says(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


async def test_header_names_in_any_case_and_a_chunked_body_are_an_ordinary_request(served: Served) -> None:
    body = prompt("one")
    chunks = b"".join(b"%x;ext=1\r\n%c\r\n" % (1, byte) for byte in body) + b"0\r\nTrailer: x\r\n\r\n"
    finishing = asyncio.create_task(finish_all(served.api, 1))
    answer = await served.says(
        b"POST /v1/completions HTTP/1.1\r\nhOsT: x\r\ncOnTeNt-TyPe: APPLICATION/JSON\r\n"
        b"X-REQUEST-ID: mine\r\nconnection: CLOSE\r\nTRANSFER-ENCODING: Chunked\r\n\r\n" + chunks
    )
    await finishing
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"x-request-id: mine\r\n" in answer
    assert b"answer0" in answer


async def test_headers_of_ordinary_size_pass_however_they_are_cut(served: Served) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Long: " + b"x" * 60_000 + b"\r\n\r\n"
    assert b"alive" in await served.says(*(head[at : at + 1000] for at in range(0, len(head), 1000)))


async def test_a_trailer_is_no_header(served: Served) -> None:
    finishing = asyncio.create_task(finish_all(served.api, 1))
    body = prompt("one")
    trailer = b"X-Request-Id: smuggled\r\nContent-Type: text/plain\r\n\r\n"
    answer = await served.says(
        request(
            b"%x\r\n" % len(body) + body + b"\r\n0\r\n" + trailer,
            "Transfer-Encoding: chunked",
            "Connection: close",
        )
    )
    await finishing
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"smuggled" not in answer


async def test_a_large_body_before_the_next_request_counts_for_no_head(served: Served) -> None:
    refused = request(prompt("x" * 150_000))
    next_one = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = await served.says(refused + next_one[:20], next_one[20:])
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b'{"status":"alive"}')


async def test_requests_one_behind_the_other_on_a_connection_are_answered_in_order(served: Served) -> None:
    finishing = asyncio.create_task(finish_all(served.api, 3))
    answer = await served.says(
        request(prompt("a")) + request(prompt("b", stream=True)) + request(prompt("c"), "Connection: close")
    )
    await finishing
    places = [answer.index(b"answer%d" % number) for number in range(3)]
    assert places == sorted(places)
    assert answer.count(b"HTTP/1.1 200 ") == 3


async def test_a_client_of_http_1_0_gets_its_stream_and_the_end_of_the_connection(served: Served) -> None:
    finishing = asyncio.create_task(finish_all(served.api, 1))
    answer = await served.says(request(prompt("a", stream=True), version="1.0"))
    await finishing
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in head
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(served: Served) -> None:
    body = prompt("a")
    reader, writer = await served.connect(
        request(b"", "Expect: 100-continue", "Connection: close", length=len(body))
    )
    async with asyncio.timeout(5):
        assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
    finishing = asyncio.create_task(finish_all(served.api, 1))
    writer.write(body)
    async with asyncio.timeout(5):
        assert b"HTTP/1.1 200 " in await reader.read()
    await finishing


async def test_a_body_that_is_too_large_is_refused_and_the_connection_stays_in_step(served: Served) -> None:
    finishing = asyncio.create_task(finish_all(served.api, 1))
    answer = await served.says(request(prompt("x" * 5000)), request(prompt("a"), "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    await finishing
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"answer0" in answer


@pytest.mark.parametrize("bytes_sent", [1, 20, 60])
async def test_a_client_that_vanishes_in_the_middle_of_its_request_leaves_nothing(
    bytes_sent: int, served: Served
) -> None:
    whole = request(prompt("never whole"))
    _, writer = await served.connect(whole[:-bytes_sent])
    await turns()
    writer.transport.abort()
    await until(lambda: served.api.answered() in ({}, {(TEXT, "499"): 1}))
    await until(lambda: served.api.serving.drain.under_way == 0)
    assert served.api.engine.process.sent == []


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "closed"])
async def test_a_client_that_vanishes_in_the_middle_of_a_stream_is_aborted(
    reset: bool, served: Served
) -> None:
    api = served.api
    reader, writer = await served.connect(request(prompt("a", stream=True, max_tokens=100)))
    await until(lambda: api.engine.requests)
    api.engine.delta("first")
    async with asyncio.timeout(5):
        assert await reader.readline()
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    await until(lambda: api.engine.aborted == [api.engine.requests[0].request_id])
    await until(lambda: api.answered() == {(TEXT, "499"): 1})
    assert (api.engine.client.open, api.serving.drain.under_way) == (0, 0)


SOON = {"header_timeout": 0.05, "body_timeout": 0.05, "keep_alive_timeout": 0.05}
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
SLOW = {
    "says nothing": (b"", b""),
    "sends half a head": (HEAD, b"408"),
    "sends nothing but empty lines": (b"\r\n" * 3, b""),
    "is idle after an answer": (GET, b"200"),
    "begins another request and leaves it": (GET + HEAD, b"408"),
    "sends no body": (request(b"", length=100), b"408"),
    "does not end a body that was refused": (request(b"{", length=5000), b"413"),
    "does not end a body that nobody reads": (request(b"{", path="/livez", length=5000), b"405"),
}


@pytest.mark.parametrize("limits", [SOON], ids=["soon"])
@pytest.mark.parametrize("what", SLOW)
async def test_a_client_that_dawdles_is_cut_off(what: str, served: Served) -> None:
    sent, status = SLOW[what]
    answer = await served.says(sent)
    if status:
        assert b"HTTP/1.1 " + status in answer
    if status == b"408":
        assert answer.endswith(b'"code":"request_timeout"}}')
    await until(lambda: served.api.serving.drain.under_way == 0)


@pytest.mark.parametrize("limits", [{**SOON, "body_timeout": 60}], ids=["soon"])
async def test_a_head_that_comes_drop_by_drop_is_cut_off_all_the_same(served: Served) -> None:
    reader, writer = await served.connect(HEAD)
    answer = asyncio.create_task(reader.read())
    drops = 0
    with contextlib.suppress(ConnectionError):
        while not answer.done() and drops < 50:
            writer.write(b"X-More: y\r\n")
            await writer.drain()
            await asyncio.wait({answer}, timeout=SOON["header_timeout"] / 5)
            drops += 1
    assert drops < 50
    with contextlib.suppress(ConnectionError):
        assert b" 408 " in await answer


@pytest.mark.parametrize("limits", [SOON], ids=["soon"])
async def test_an_answer_under_way_outlives_the_limits_of_its_connection(served: Served) -> None:
    reader, _ = await served.connect(request(prompt("a", stream=True, max_tokens=9)) + HEAD)
    await until(lambda: served.api.engine.requests)
    for _ in range(4):
        served.api.engine.delta("word ")
        async with asyncio.timeout(5):
            while b"word" not in (line := await reader.readline()):
                assert line
        await beyond_the_short_limits()
    served.api.engine.delta([], finish_reason="length")
    async with asyncio.timeout(5):
        assert b"[DONE]" in await reader.read()


async def beyond_the_short_limits() -> None:
    loop = asyncio.get_running_loop()
    later = loop.create_future()
    loop.call_later(0.06, later.set_result, None)
    await later


TWO = pytest.mark.parametrize("limits", [{"max_connections": 2}], ids=["two"])
PROBE = GET[:-2] + b"Connection: close\r\n\r\n"


@TWO
async def test_beside_as_many_requests_as_may_be_probes_pass_and_others_are_told_to_come_back(
    served: Served,
) -> None:
    under_way = [await served.connect(request(prompt("a"))) for _ in range(2)]
    await until(lambda: served.api.engine.has_requests(2))
    for _ in range(20):
        await served.connect(GET)  # probes that stay
    for path in (b"/livez", b"/readyz", b"/metrics"):
        assert b" 200 " in (await served.says(PROBE.replace(b"/livez", path)))[:20]
    answer = await served.says(request(prompt("b")))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2\r\n" in answer
    assert b'"code":"overloaded"' in answer
    finishing = asyncio.create_task(finish_all(served.api, 3))
    async with asyncio.timeout(5):
        assert b" 200 " in await under_way[0][0].readline()
    assert b" 200 " in await served.says(request(prompt("c"), "Connection: close"))
    await finishing


@TWO
async def test_idle_connections_give_way_to_whoever_comes_and_the_oldest_goes_first(served: Served) -> None:
    busy, _ = await served.connect(request(prompt("a", stream=True)))
    await until(lambda: served.api.engine.has_requests(1))
    idle = []
    for _ in range(12):
        idle.append((await served.connect(GET))[0])
        assert b"alive" in await idle[-1].readuntil(b"}")
    async with asyncio.timeout(5):
        assert await idle[0].read() == b""
        assert b"alive" in await served.says(PROBE)
    assert not idle[-1].at_eof()
    served.api.engine.delta("word", finish_reason="length")
    async with asyncio.timeout(5):
        assert b"[DONE]" in await busy.readuntil(b"[DONE]")


@TWO
async def test_bodies_that_have_been_coming_for_long_give_way_to_a_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_room, "SLOW_BODY_SECONDS", 0.0)
    slow = [await served.connect(request(b"{", length=1000)) for _ in range(2)]
    await until(lambda: served.api.serving.drain.under_way == 2)
    finishing = asyncio.create_task(finish_all(served.api, 1))
    assert b" 200 " in await served.says(request(prompt("c"), "Connection: close"))
    await finishing
    async with asyncio.timeout(5):
        assert (await slow[0][0].read()).startswith(b"HTTP/1.1 503 ")


OFFERS = {
    "HTTP/2": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
    "WebSocket": ("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "TLS": ("Connection: Upgrade", "Upgrade: TLS/1.0"),
}


@pytest.mark.parametrize("apart", [False, True], ids=["in one piece", "body apart"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("offer", OFFERS)
async def test_an_offer_of_another_protocol_is_passed_over(
    offer: str, chunked: bool, apart: bool, served: Served
) -> None:
    body = prompt("one")
    if chunked:
        sent = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        whole = request(sent, "Transfer-Encoding: chunked", *OFFERS[offer])
    else:
        sent, whole = body, request(body, *OFFERS[offer])
    head = whole[: -len(sent)]
    finishing = asyncio.create_task(finish_all(served.api, 2))
    reader, writer = await served.connect(*((head, sent) if apart else (whole,)))
    async with asyncio.timeout(5):
        assert b" 200 " in await reader.readline()
        assert b"answer0" in await reader.readuntil(b"answer0")
        # The connection goes on, with another offer and behind one without a body.
        writer.write(request(b"", *OFFERS[offer], path="/livez").replace(b"POST", b"GET") + whole + PROBE)
        rest = await reader.read()
    await finishing
    assert rest.index(b"alive") < rest.index(b"answer1") < rest.rindex(b"alive")


async def test_a_client_that_takes_the_server_for_a_proxy_is_refused(served: Served) -> None:
    answer = await served.says(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n" + GET)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"alive" not in answer


async def test_thousands_of_offers_in_one_segment_are_all_answered(served: Served) -> None:
    offered = request(b"", *OFFERS["TLS"], path="/livez").replace(b"POST", b"GET")
    answer = await served.says(offered * 1500 + PROBE, seconds=30)
    assert answer.count(b"alive") == 1501


@pytest.mark.parametrize("limits", [{"max_held_body_bytes": 3000}], ids=["3000"])
async def test_bodies_beyond_the_budget_are_refused_until_others_are_gone(served: Served) -> None:
    half = request(b"5db\r\n" + b" " * 1499, "Transfer-Encoding: chunked")
    held = [await served.connect(half) for _ in range(2)]
    await until(lambda: served.api.serving.drain.under_way == 2)
    await turns()
    answer = await served.says(request(prompt("x"), "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 2\r\n" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "overloaded"
    held[0][1].close()
    await until(lambda: served.api.serving.drain.under_way == 1)
    finishing = asyncio.create_task(finish_all(served.api, 1))
    assert b" 200 " in await served.says(request(prompt("x"), "Connection: close"))
    await finishing


class Kept:
    """Something of a request."""


of_the_request: ContextVar[Kept] = ContextVar("of_the_request")


async def test_an_idle_connection_keeps_nothing_of_its_last_request() -> None:
    kept: list[weakref.ref[Kept]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        in_scope, in_context = Kept(), Kept()
        kept.extend((weakref.ref(in_scope), weakref.ref(in_context)))
        scope["kept"] = in_scope
        of_the_request.set(in_context)
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, last_bytes_seconds=3)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
    for count in (1, 2):
        writer.write(request(b"{}"))
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not server.server_state.tasks)
        assert len(kept) == 2 * count
        assert [one() for one in kept] == [None] * len(kept)
    writer.close()
    server.should_exit = True
    await running
    listener.close()


async def test_a_body_that_comes_after_its_answer_is_passed_over(served: Served) -> None:
    reader, writer = await served.connect(request(b"", "Content-Encoding: gzip", length=5))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 415 ")
    writer.write(b"12345" + b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).endswith(b'{"status":"alive"}')
