"""One incarnation of the engine process: its sockets, its start, its end.

`engine_client` creates one for each start, so that no message of a dead engine can reach the next one. It
never interprets a message.
"""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from mamba_server import wire
from mamba_server.wire import FromEngine, ToEngine

ENGINE_COMMAND: tuple[str, ...] = (sys.executable, "-m", "mamba_server.engine")
RETRY_SECONDS = 0.02
"""Interval between attempts to send to an engine that is not connected yet."""
_PR_SET_PDEATHSIG = 1
# Loaded before any fork: a forked child must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """Make the kernel kill this child when the parent's main thread ends, even if it has ended already."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


class EngineProcess:
    """A running engine process, and the two sockets by which messages go to it and come from it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        folder: Path,
        context: zmq.asyncio.Context,
        to_engine: zmq.Socket[bytes],
        from_engine: zmq.asyncio.Socket,
    ) -> None:
        self._process = process
        self._folder = folder
        self._context = context
        self._to = to_engine
        self._from = from_engine
        self._unsent: deque[bytes] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._encoder = wire.encoder()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = wire.decoder(FromEngine)

    @classmethod
    async def start(cls, settings_json: str, command: Sequence[str] = ENGINE_COMMAND) -> "EngineProcess":
        """Bind both sockets in a folder of their own and start the child. Raises OSError if it cannot."""
        folder = Path(tempfile.mkdtemp(prefix="mambaserve-"))
        context = zmq.asyncio.Context()
        # Sending never blocks, so this socket needs no futures of the event loop.
        to_engine: zmq.Socket[bytes] = zmq.Context.shadow(context.underlying).socket(zmq.PUSH)
        from_engine = context.socket(zmq.PULL)
        try:
            addresses = []
            for socket, name in ((to_engine, "to"), (from_engine, "from")):
                socket.set_hwm(0)  # admission bounds the messages; a full pipe must not block the loop
                socket.linger = 0
                address = f"ipc://{folder}/{name}"
                socket.bind(address)
                addresses.append(address)
            parent = os.getpid()
            process = await asyncio.create_subprocess_exec(
                *command,
                *("--settings", settings_json, "--to-engine", addresses[0], "--from-engine", addresses[1]),
                stdin=asyncio.subprocess.DEVNULL,
                preexec_fn=lambda: _die_with(parent),
                # Ctrl-C in the terminal must reach this process only, which drains first.
                start_new_session=True,
            )
        except BaseException:
            to_engine.close()
            from_engine.close()
            context.term()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, folder, context, to_engine, from_engine)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode

    def send(self, message: ToEngine) -> None:
        """Queue a message without waiting. It is lost if the engine has ended, which `wait` reports."""
        self._unsent.append(self._encoder.encode(message))
        if self._retry is None:
            self._send_unsent()

    def _send_unsent(self) -> None:
        self._retry = None
        try:
            while self._unsent:
                self._to.send(self._unsent[0], flags=zmq.NOBLOCK)
                self._unsent.popleft()
        except zmq.Again:
            # The engine is not connected yet; its first message may arrive a moment before it is.
            if self.exit_code is None:
                self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._send_unsent)

    async def receive(self) -> FromEngine:
        """Wait for the next message. Raises msgspec.DecodeError for one that is not of the protocol."""
        return self._decoder.decode(await self._from.recv())

    async def wait(self) -> int:
        """Wait for the process to end and return its exit code; negative: minus the signal."""
        return await self._process.wait()

    def kill(self) -> None:
        """Kill the process, if it still runs, and its children, such as compilers of its kernels."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the sockets and remove their folder. The process must have ended."""
        if self._retry is not None:
            self._retry.cancel()
        self._to.close()
        self._from.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
