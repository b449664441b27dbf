"""Clients that read slowly keep their connection, and those that read nothing lose it."""

import asyncio

from starlette.types import Receive, Scope, Send

from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.connection.limited_protocol import LimitedProtocol
from mamba_edge.connection.waiting_requests import RequestTurns
from mamba_settings.http_limits import HttpLimits
from virtual_time import in_virtual_time

SECONDS = 10.0


class Transport(asyncio.Transport):
    """A connection whose client reads as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.unread = 0
        self.closing = self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.unread += len(data)

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing or self.aborted


def connected() -> tuple[LimitedProtocol, Transport]:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError

    limits = HttpLimits(read_nothing_timeout=SECONDS, header_timeout=1e6)
    config = HttpServer(app, last_bytes_seconds=1, limits=limits).config
    config.load()
    server_state = HttpServer(app, last_bytes_seconds=1, limits=limits).server_state
    protocol = LimitedProtocol(
        limits=limits,
        room=ConnectionRoom(9),
        turns=RequestTurns(),
        config=config,
        server_state=server_state,
        app_state={},
    )
    transport = Transport()
    protocol.connection_made(transport)
    transport.unread = 100_000
    protocol.pause_writing()
    return protocol, transport


@in_virtual_time
async def test_who_reads_nothing_is_cut() -> None:
    _, transport = connected()
    await asyncio.sleep(SECONDS - 0.1)
    assert not transport.aborted
    await asyncio.sleep(0.2)
    assert transport.aborted


@in_virtual_time
async def test_who_reads_a_little_is_not_until_it_reads_nothing() -> None:
    _, transport = connected()
    for _ in range(10):
        transport.unread -= 1
        await asyncio.sleep(SECONDS - 0.1)
        assert not transport.aborted
    await asyncio.sleep(2 * SECONDS)
    assert transport.aborted


@in_virtual_time
async def test_who_has_read_it_all_is_watched_no_more() -> None:
    protocol, transport = connected()
    transport.unread = 0
    protocol.resume_writing()
    await asyncio.sleep(10 * SECONDS)
    assert not transport.aborted
    protocol.pause_writing()
    protocol.connection_lost(None)
    await asyncio.sleep(10 * SECONDS)
    assert not transport.aborted


@in_virtual_time
async def test_a_connection_that_is_to_be_closed_is_cut_if_its_last_bytes_are_not_read() -> None:
    protocol, transport = connected()
    protocol.resume_writing()
    transport.unread = 0
    protocol.data_received(b"no HTTP at all\r\n\r\n")
    assert transport.closing
    await asyncio.sleep(SECONDS + 0.1)
    assert transport.aborted
