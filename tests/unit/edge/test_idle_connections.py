"""An idle connection is closed when it was idle for so long, however many requests came before."""

import asyncio

from starlette.types import Receive, Scope, Send

from mamba_edge.connection.connection_room import ConnectionRoom
from mamba_edge.connection.http_server import HttpServer
from mamba_edge.connection.limited_protocol import LimitedProtocol
from mamba_edge.connection.waiting_requests import RequestTurns
from mamba_edge.exchange.asgi_responses import send_json
from mamba_settings.http_limits import HttpLimits
from virtual_time import in_virtual_time

SECONDS = 5
ASKED = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


class Transport(asyncio.Transport):
    """A connection that notes what is written and when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0
        self.closed_at: float | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.answers += bytes(data).count(b"HTTP/1.1 200")

    def close(self) -> None:
        self.closed_at = self.closed_at or asyncio.get_running_loop().time()

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closed_at is not None


def connected(takes: float = 0.0) -> tuple[LimitedProtocol, Transport]:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await asyncio.sleep(takes)
        await send_json(send, b"{}")

    server = HttpServer(app, last_bytes_seconds=1, limits=HttpLimits(keep_alive_timeout=SECONDS))
    server.config.load()
    protocol = LimitedProtocol(
        limits=HttpLimits(keep_alive_timeout=SECONDS),
        room=ConnectionRoom(9),
        turns=RequestTurns(),
        config=server.config,
        server_state=server.server_state,
        app_state={},
    )
    transport = Transport()
    protocol.connection_made(transport)
    return protocol, transport


@in_virtual_time
async def test_the_time_begins_with_the_last_answer() -> None:
    protocol, transport = connected()
    for _ in range(6):
        protocol.data_received(ASKED)
        await asyncio.sleep(SECONDS - 1)
    assert transport.answers == 6
    assert transport.closed_at is None
    last = asyncio.get_running_loop().time() - (SECONDS - 1)
    await asyncio.sleep(2 * SECONDS)
    assert transport.closed_at is not None
    assert abs(transport.closed_at - last - SECONDS) < 0.01


@in_virtual_time
async def test_a_request_that_takes_longer_is_answered() -> None:
    protocol, transport = connected(takes=3 * SECONDS)
    for _ in range(2):
        protocol.data_received(ASKED)
        await asyncio.sleep(3 * SECONDS + 1)
    assert transport.answers == 2
    assert transport.closed_at is None
    await asyncio.sleep(SECONDS)
    assert transport.closed_at is not None


@in_virtual_time
async def test_a_connection_that_is_gone_leaves_no_timer() -> None:
    protocol, _ = connected()
    protocol.data_received(ASKED)
    await asyncio.sleep(0.1)
    timer = protocol.timeout_keep_alive_task
    assert timer is not None
    protocol.connection_lost(None)
    assert timer.cancelled()
