"""The engine of raw bytes leaves nothing behind that a later test would be blamed for."""

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit

import pytest

from raw_engine import RawEngine, says


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_came_last_ends_with_the_server(turns: int) -> None:
    async with RawEngine(says(hold=True)) as engine:
        address = urlsplit(engine.url)
        client = socket.create_connection((address.hostname, address.port), 5)
        # As far as the server got with it: not accepted, accepted, served.
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""
