"""Parts of starting: what is refused, what is loaded, and threads that do not outlive their use."""

import asyncio
import io
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from mamba_edge.listener import listen
from mamba_server.api.requests.errors import BadConfiguration, ServeError
from mamba_server.api.server import Server, in_daemon_thread
from mamba_server.wire import Ready
from mamba_settings.engine_settings import EngineSettings


async def test_the_last_port_leaves_none_for_the_admin_server() -> None:
    with pytest.raises(ServeError, match="--admin-port"):
        await Server(EngineSettings(model="m", host="127.0.0.1", port=65_535)).run()


async def test_an_admin_server_beyond_loopback_needs_a_token() -> None:
    with pytest.raises(BadConfiguration, match="admin_token_file"):
        Server(EngineSettings(model="m", admin_host="10.0.0.1"))


def test_a_key_file_that_is_missing_is_wrong_configuration(tmp_path: Path) -> None:
    for option in ("api_key_file", "admin_token_file"):
        with pytest.raises(BadConfiguration, match=f"{option}: {tmp_path}/absent") as caught:
            Server(EngineSettings(model="m", **{option: str(tmp_path / "absent")}))
        assert caught.value.exit_code == 2


async def test_an_engine_that_becomes_ready_while_the_server_ends_is_not_announced() -> None:
    said: list[str] = []
    ended, serving = (Server(EngineSettings(model="m"), announce=said.append) for _ in range(2))
    ended._on_signal()
    ended._on_ready(Ready(10, 10, (), {"strategy": "NoBuffer", "pageSize": 16, "pages": 9}))
    assert said == []
    serving._on_ready(Ready(10, 10, (), {"strategy": "NoBuffer", "pageSize": 16, "pages": 9}))
    assert [line.startswith("mambaserve: ready: m at") for line in said] == [True]


async def test_an_engine_is_ready_also_where_nobody_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.FileIO("/dev/full", "w")
    with io.TextIOWrapper(raw, write_through=True) as full, capture_logs():
        monkeypatch.setattr("sys.stdout", full)
        Server(EngineSettings(model="m"))._on_ready(Ready(10, 10, (), {"pageSize": 16, "pages": 9}))


async def test_a_port_that_is_taken_keeps_the_server_from_starting() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        for option, options in (
            ("--port", {"port": port}),
            ("--admin-port", {"port": 0, "admin_port": port}),
        ):
            with pytest.raises(ServeError, match=f"{option}: .*127.0.0.1:{port}"):
                await Server(EngineSettings(model="m", **options)).run()


async def test_a_host_of_another_machine_is_told_by_its_option(tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("secret")
    for option in ("host", "admin-host"):
        settings: dict[str, Any] = {"port": 0, option.replace("-", "_"): "192.0.2.1"}
        with pytest.raises(ServeError, match=f"^--{option}: "):
            await Server(EngineSettings(model="m", admin_token_file=str(token), **settings)).run()


@pytest.mark.slow
def test_nothing_that_computes_is_loaded_beside_the_engine() -> None:
    """Each of these would be in memory for as long as the server runs."""
    heavy = ("torch", "numpy", "transformers", "safetensors", "kubernetes", "kopf", "redis")
    modules = "mamba_cli.local.loading.loading_progress, mamba_server.api.server, sys"
    code = f"import {modules}; print({set(heavy)!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


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
