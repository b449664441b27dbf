"""`own_engine`: one engine that serves a model for as long as a command of the terminal needs it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from rich.console import Console

from mamba_cli.errors import CliError, RunFailed
from mamba_cli.local.loading.loading_view import LoadingView
from mamba_cli.local.loading.readiness import engine_readiness
from mamba_cli.local.ports import free_ports

PROBE_INTERVAL = 0.2
"""Seconds between two questions whether the engine is ready."""
END_TIMEOUT = 30.0
"""Seconds that the engine has to end before it is killed."""


@contextlib.contextmanager
def own_engine(model: str, console: Console) -> Iterator[str]:
    """Serve `model` on a free port and yield the URL once it is ready; end the engine afterwards.

    Settings of `serve` come from its environment variables. Raises the error of an engine that ends while it
    loads, with its exit code.
    """
    port, admin_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="mambaserve-run-") as folder:
        log = Path(folder) / "engine.log"
        command = [sys.executable, "-m", "mamba_cli", "serve", model]
        addresses = ["--host", "127.0.0.1", "--port", str(port), "--admin-port", str(admin_port)]
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C at the terminal reaches the conversation alone.
            engine = subprocess.Popen(
                [*command, *addresses],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(_until_ready(engine, url, model, log, console))
            yield url
        finally:
            _end(engine)


async def _until_ready(
    engine: "subprocess.Popen[bytes]", url: str, model: str, log: Path, console: Console
) -> None:
    """Show the progress of loading until the engine is ready. Raises `CliError` if it ends."""
    view = LoadingView(console)
    try:
        async with aiohttp.ClientSession() as session:
            while True:
                readiness = await engine_readiness(session, url)
                if readiness is not None and readiness.ready:
                    return
                if (code := engine.poll()) is not None:
                    raise _ended(code, log)
                view.show(model, readiness)
                await asyncio.sleep(PROBE_INTERVAL)
    finally:
        view.close()


def _ended(code: int, log: Path) -> CliError:
    """Return the error of an engine that ended, with its own message if it wrote one."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    messages = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    failure: CliError = RunFailed(messages[-1] if messages else f"the engine ended with exit code {code}")
    failure.exit_code = code if code > 0 else 1
    return failure


def _end(engine: "subprocess.Popen[bytes]") -> None:
    """End the engine and the processes that it started."""
    deadline = time.monotonic() + END_TIMEOUT
    with contextlib.suppress(ProcessLookupError):
        engine.send_signal(signal.SIGTERM)
    while True:
        try:
            engine.wait(max(0.0, deadline - time.monotonic()))
            return
        except KeyboardInterrupt:
            deadline = time.monotonic()  # whoever presses Ctrl-C again does not want to wait
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(engine.pid, signal.SIGKILL)
            deadline = time.monotonic() + END_TIMEOUT
