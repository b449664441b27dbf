"""Imports that the fork servers of all workers of a run have in common.

The nursery of the workers (`worker_nursery`) starts `prefork` with the word "shared", which calls `lend`.
That process imports what the programs of tests need, once, and forks another, which imports torch and the
engine on top. A worker that needs a fork server connects to one of the two and gets a fork of it; from then
on both behave as if the worker had started it. These processes end with the nursery, a fork with its worker.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

PR_SET_PDEATHSIG = 1
PROGRAM = Path(__file__).with_name("prefork.py")
READY = b"r"
END_SECONDS = 10.0
"""Time that a fork server has for ending its children."""
folder = ""
"""Folder of the sockets of the two processes; empty where each worker starts a server of its own."""
forks: list[int] = []
"""Process ids of the servers that this process of pytest uses, which are no children of it."""


class Serve(Protocol):
    """Function that serves one worker until it is gone; it returns in the server only."""

    def __call__(self, connection: socket.socket, *, warm: bool) -> None: ...


# --- the nursery's side -------------------------------------------------------------------------------------


class Lender:
    """The process that imports for all, as the nursery sees it."""

    def __init__(self, sockets: str, environment: dict[str, str]) -> None:
        """Start it; sockets: an existing folder."""
        self._folder = sockets
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "shared", sockets],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip

    def wait(self) -> int:
        """Wait for the imports, tell `connect` of the folder and return the id of the process.

        If something could not be imported, each worker will start a server and see why.
        """
        global folder
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            if stdout.read() == READY * 2:
                folder = self._folder
        return self._process.pid


# --- a worker's side ----------------------------------------------------------------------------------------


def connect(*, warm: bool) -> tuple[socket.socket, int]:
    """Return the connection to a new fork server and its process id."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address(folder, warm))
    process = int(connection.recv(16))
    forks.append(process)
    return connection, process


def wait_for_end(process: int) -> None:
    """Wait until the fork server has ended; its connection must be closed."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        return
    with os.fdopen(handle):
        if not select.select([handle], [], [], END_SECONDS)[0]:
            raise TimeoutError(f"fork server {process} did not end within {END_SECONDS:.0f} s")


# --- the process that imports -------------------------------------------------------------------------------


def lend(
    sockets: str, import_programs: Callable[[], None], import_engine: Callable[[], None], serve: Serve
) -> None:
    """Import, then fork a server for each connection; returns where such a server has lost its worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    import_programs()
    is_warm = not os.fork()
    if is_warm:
        _end_with_parent()
        import_engine()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(_address(sockets, is_warm))
        listener.listen(64)
        os.write(1, READY)
        os.dup2(2, 1)  # its end tells the nursery that both have done this
        connection = _fork_for_worker(listener)
    serve(connection, warm=is_warm)


def _fork_for_worker(listener: socket.socket) -> socket.socket:
    """Return the connection to a worker in each forked process; this one accepts until it is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a server ended
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            _end_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            connection.sendall(str(os.getpid()).encode())
            return connection
        connection.close()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _address(sockets: str, warm: bool) -> str:
    return f"{sockets}/{'warm' if warm else 'cold'}"
