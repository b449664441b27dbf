"""Parts of starting: sockets, addresses, and threads that do not outlive their use."""

import asyncio
import socket
import threading

import pytest

from mamba_planner.engine_settings import EngineSettings
from mamba_server.api.admin import is_loopback
from mamba_server.api.errors import BadConfiguration, ServeError
from mamba_server.api.server import Server, in_daemon_thread, listen, url_of


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_port_0_takes_a_free_port_that_the_url_tells(host: str) -> None:
    with listen(host, 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no.such.host.invalid"])
def test_an_address_that_cannot_be_had_is_told(host: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=f"{host}:{port}"):
            listen(host, port)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


async def test_the_last_port_leaves_none_for_the_admin_server() -> None:
    with pytest.raises(ServeError, match="give --admin-port"):
        await Server(EngineSettings(model="m", host="127.0.0.1", port=65_535)).run()


async def test_an_admin_server_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(BadConfiguration, match="admin_token_file"):
        Server(EngineSettings(model="m", admin_host="10.0.0.1"))


async def test_a_daemon_thread_gives_its_result_or_its_error() -> None:
    assert await in_daemon_thread(lambda: 5) == 5

    def fail() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await in_daemon_thread(fail)


async def test_work_that_is_not_done_does_not_hold_up_the_end() -> None:
    release = threading.Event()
    task = asyncio.create_task(in_daemon_thread(release.wait))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await asyncio.sleep(0.05)
