"""Bytes written past the messages of ASGI equal those that the messages would have produced."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventually import turns
from mamba_edge.app.cors import with_cors
from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.direct_exchange import DIRECT, DirectExchange
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.connection.limited_protocol import LimitedProtocol
from mamba_edge.connection.waiting_requests import RequestTurns
from mamba_edge.exchange.request_body import ClientGone, read_body
from mamba_edge.exchange.request_context import context_of
from mamba_edge.exchange.request_middleware import RequestMiddleware
from mamba_settings.http_limits import HttpLimits

MOST = 64


class Client(asyncio.Transport):
    """The other side of a connection; `unread` bytes of what it got wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.got = b""
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.got += bytes(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    @property
    def answers(self) -> bytes:
        return re.sub(rb"date: [^\r]*\r\n", b"", self.got)


def connected(app: Any) -> tuple[LimitedProtocol, Client]:
    limits = HttpLimits(header_timeout=1e6)
    server = HttpServer(app, last_bytes_seconds=1, limits=limits)
    server.config.load()
    protocol = LimitedProtocol(
        limits=limits, room=ConnectionRoom(9), turns=RequestTurns(), config=server.config,
        server_state=server.server_state, app_state={},
    )  # fmt: skip
    client = Client()
    protocol.connection_made(client)
    return protocol, client


@dataclass
class Answer:
    """Answer of an application to one request."""

    status: int = 200
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=lambda: [b"{}"])


class App:
    """Answers the requests in their order; `direct`: past the messages where that can be."""

    def __init__(self, answers: list[Answer], *, direct: bool) -> None:
        self.bodies: list[bytes] = []
        self._answers, self._direct = iter(answers), direct

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        way: DirectExchange | None = scope[DIRECT] if self._direct else None
        try:
            body = await read_body(scope["headers"], receive, MOST, direct=way)
        except ClientGone:
            return
        self.bodies.append(body)
        answer = next(self._answers, Answer())
        first, rest = answer.parts[0], answer.parts[1:]
        if way is None or not way.begin(answer.status, answer.headers, first, bool(rest)):
            await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "http.response.body", "body": first, "more_body": bool(rest)})
        for number, part in enumerate(rest, 1):
            more = number < len(rest)
            if way is None or not more or not way.write(part):
                await send({"type": "http.response.body", "body": part, "more_body": more})


@st.composite
def requests(draw: Any) -> bytes:
    method = draw(st.sampled_from([b"POST", b"POST", b"GET", b"HEAD"]))
    version = draw(st.sampled_from([b"1.1", b"1.1", b"1.1", b"1.0"]))
    lines = [b"%b /v1/x?q=1 HTTP/%b" % (method, version), b"Host: x"]
    lines += draw(
        st.lists(st.sampled_from([b"Connection: close", b"X-Y: z", b"Expect: 100-continue"]), max_size=1)
    )
    body = draw(st.binary(max_size=MOST))
    framed = draw(st.sampled_from(["length", "chunked", "none"]))
    if framed == "length":
        lines.append(b"Content-Length: %d" % len(body))
    elif framed == "chunked" and version == b"1.1":
        lines.append(b"Transfer-Encoding: chunked")
        cut = draw(st.integers(0, len(body)))
        pieces = [piece for piece in (body[:cut], body[cut:]) if piece]
        body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    else:
        body = b""
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@st.composite
def answers(draw: Any) -> Answer:
    parts = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
    headers = [(b"content-type", b"a/b")]
    if draw(st.booleans()):
        headers.append((b"content-length", b"%d" % sum(map(len, parts))))
    if draw(st.sampled_from([False, False, False, True])):
        headers.append((b"connection", b"close"))
    return Answer(draw(st.sampled_from([200, 200, 400, 503])), headers, parts)


async def outcome(
    data: list[bytes], planned: list[Answer], *, direct: bool
) -> tuple[bytes, list[bytes], bool]:
    app = App(planned, direct=direct)
    protocol, client = connected(app)
    for piece in data:
        if not client.closed:
            protocol.data_received(piece)
            await turns(2)
    await turns()
    closed = client.closed
    protocol.connection_lost(None)
    await turns()
    return client.answers, app.bodies, closed


def pieces(data: Any, whole: bytes) -> list[bytes]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    cut = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return [piece for piece in cut if piece]


def same_both_ways(sent: list[bytes], planned: list[Answer]) -> None:
    async def both() -> None:
        usual = await outcome(sent, planned, direct=False)
        assert await outcome(sent, planned, direct=True) == usual

    asyncio.run(both())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_however_its_bytes_come_a_client_gets_what_messages_would_have_brought(data: Any) -> None:
    sent = data.draw(st.lists(requests(), min_size=1, max_size=3))
    planned = data.draw(st.lists(answers(), min_size=len(sent), max_size=len(sent)))
    same_both_ways(pieces(data, b"".join(sent)), planned)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_is_no_request_is_refused_in_both_ways(data: Any) -> None:
    whole = b"".join(data.draw(st.lists(requests(), min_size=1, max_size=3)))
    at = data.draw(st.integers(0, len(whole)))
    spoilt = data.draw(st.sampled_from([b"GET", b"\r\n", b"\n", b" ", b"\x00"]))
    same_both_ways(pieces(data, whole[:at] + spoilt + whole[at:]), [Answer(parts=[b"1", b"2"])])


BODY = b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


async def begun(
    *headers: tuple[bytes, bytes], status: int = 200, part: bytes = b"{}", more: bool = False
) -> Any:
    said: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append(scope[DIRECT].begin(status, headers, part, more))

    protocol, client = connected(app)
    protocol.data_received(BODY)
    await turns()
    return said[0], client.answers


async def test_an_answer_of_unknown_length_goes_out_in_one_piece_with_its_end() -> None:
    taken, got = await begun()
    assert taken
    assert got == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


async def test_an_answer_with_its_length_goes_out_in_one_piece() -> None:
    taken, got = await begun((b"content-length", b"2"), (b"x-a", b"b"))
    assert taken
    assert got == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-a: b\r\n\r\n{}"


@pytest.mark.parametrize(
    "headers",
    [
        ((b"content-length", b"3"),),
        ((b"content-length", b"1"),),
        ((b"content-length", b"-2"),),
        ((b"x-a", b"b\r\nx-c: d"),),
        ((b"x a", b"b"),),
        ((b"transfer-encoding", b"chunked"),),
    ],
)
async def test_what_does_not_fit_is_left_to_messages_which_say_what_is_wrong(headers: Any) -> None:
    taken, got = await begun(*headers)
    assert not taken
    assert got.startswith(b"HTTP/1.1 500 ")


async def test_a_client_that_has_not_read_what_it_got_is_waited_for() -> None:
    said: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        said.append(scope[DIRECT].begin(200, [], b"1", True))
        protocol.pause_writing()
        said.append(scope[DIRECT].write(b"2"))
        protocol.resume_writing()
        said.append(scope[DIRECT].write(b"3"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    protocol, client = connected(app)
    protocol.data_received(BODY)
    await turns()
    assert said == [True, False, True]
    assert client.answers.endswith(b"\r\n\r\n1\r\n1\r\n1\r\n3\r\n0\r\n\r\n")


async def test_the_middleware_adds_its_headers_and_counts_an_answer_that_went_past_messages() -> None:
    counted: list[tuple[str, int]] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        context = context_of(scope)
        context.answer_headers.append((b"x-ratelimit-limit-requests", b"7"))
        assert context.begin is not None
        assert context.begin(200, [(b"content-length", b"2")], b"{}", False)

    middleware = RequestMiddleware(
        inner, route_of=str, answered=lambda route, status: counted.append((route, status))
    )
    protocol, client = connected(middleware)
    protocol.data_received(BODY.replace(b"Host: x", b"Host: x\r\nX-Request-Id: mine"))
    await turns()
    assert b"\r\nx-request-id: mine\r\nx-ratelimit-limit-requests: 7\r\n\r\n{}" in client.answers
    assert counted == [("/v1/x", 200)]


async def test_headers_for_a_page_of_another_origin_are_on_every_answer() -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        if not scope[DIRECT].begin(200, headers, b"{}", False):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"{}"})

    protocol, client = connected(with_cors(inner, ("https://a.example",)))
    protocol.data_received(BODY.replace(b"Host: x", b"Host: x\r\nOrigin: https://a.example"))
    await turns()
    assert b"access-control-allow-origin: https://a.example\r\n" in client.answers.lower()
