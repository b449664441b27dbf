"""Children of a forked program, such as the engine of a server, that start without importing torch anew.

`prefork` calls `lend_imports` in a process that is about to become the program. A helper is forked there and
then, while there is one thread and no state of the program. When the program starts Python on a module or a
file by `asyncio.create_subprocess_exec`, the helper forks the child twice, so that the kernel gives it to the
program: the child has the program as its parent, its own session, files, folder and environment, and dies
with its parent. Imports apart, it is a process like any other; it keeps no memory aside, because it shares
what was imported. A child whose environment changes what is imported is started by Python as ever.
"""

from __future__ import annotations

import array
import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36
MODULES = (
    "mamba_kernels.cpu.library",
    "mamba_server.engine.admin",
    "mamba_server.engine.boot",
    "mamba_server.engine.engine_loop",
    "mamba_server.engine.grammar_compiler",
    "mamba_server.engine.process_memory.cold_memory",
    "mamba_server.engine.process_memory.garbage",
    "mamba_server.engine.process_memory.library_pages",
    "mamba_server.engine.transfers.start",
    "mamba_server.grammar_matcher",
    "zmq.asyncio",
)
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "OPENBLAS_NUM_THREADS": "1"}
"""Variables with which the modules have to be imported: libraries read them once."""
READ_BY_IMPORTS = ("CUDA_", "LD_", "MAMBASERVE_KERNELS", "PYTHONPATH", "TORCH_", "TRITON_")
"""Beginnings of the names of other variables that change what is imported."""
STARTS_CHILDREN = "mamba_cli"
"""Module whose children are started warm, too: of `up`, a server, which starts an engine."""
START_SECONDS = 60.0
LIBC = ctypes.CDLL(None, use_errno=True)
Become = Callable[[dict[str, Any], list[int]], NoReturn]


def _read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(READ_BY_IMPORTS)}


IMPORTED_WITH = _read_by_imports(os.environ)
"""Those variables when the modules were imported."""


def adopt_orphans() -> None:
    """Have the kernel give this process the children of its children when these end."""
    if sys.platform == "linux":
        LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def lend_imports(become: Become) -> None:
    """Fork the helper, and have the program that this process becomes start its children with it.

    `become`: function that turns a fork into the program of a request, with the files 1 and 2.
    """
    adopt_orphans()
    program = os.getpid()
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        request, files = _fork_on_request(theirs, program)
        _prepare_child(files[0], request["argv"])
        become(request, files[1:])
    theirs.close()
    real = asyncio.create_subprocess_exec
    helper = _Helper(ours)

    async def create(*command: str, **options: Any) -> Any:
        process = await helper.start(command, **options)
        return process or await real(*command, **options)

    asyncio.create_subprocess_exec = create


# --- the program's side -------------------------------------------------------------------------------------


class _Helper:
    """The helper as the program sees it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._one = threading.Lock()

    async def start(
        self,
        command: tuple[str, ...],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: Mapping[str, str] | None = None,
        start_new_session: bool = False,
        preexec_fn: Callable[[], None] | None = None,
        **other: Any,
    ) -> WarmProcess | None:
        """Start the command; None = it has to be started in the ordinary way.

        `preexec_fn` is that of a child which ends with its parent, as each child of the helper does.
        """
        environment = dict(os.environ if env is None else env)
        python, what, *_ = (*map(str, command), "")
        if (
            python != sys.executable
            or not (what == "-m" or what.endswith(".py"))
            or other
            or _read_by_imports(environment) != IMPORTED_WITH
            or any(environment.get(name, value) != value for name, value in ONE_THREAD.items())
        ):
            return None
        request = {
            "argv": [str(argument) for argument in command[1:]],
            "env": environment,
            "cwd": os.getcwd(),
            "session": start_new_session,
            "warm": command[1:3] == ("-m", STARTS_CHILDREN),
        }
        child = _files_of_child(stdin, stdout, stderr)
        try:
            pid = await asyncio.to_thread(self._ask, request, child.given)
        finally:
            child.close_given()
        process = WarmProcess(pid)
        await process.connect(child)
        return process

    def _ask(self, request: dict[str, Any], files: list[int]) -> int:
        message = json.dumps(request).encode()
        with self._one:
            socket.send_fds(self._connection, [len(message).to_bytes(4, "big")], files)
            self._connection.sendall(message)
            return int(self._connection.recv(16))


class _FilesOfChild:
    """Files 0, 1 and 2 of a child, and the program's ends of those that are pipes."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.ends: dict[int, int] = {}
        """The program's end of a pipe, by the number of the child's file."""
        self._to_close: list[int] = []

    def add(self, wanted: Any) -> None:
        number = len(self.given)
        if wanted == subprocess.PIPE:
            reader, writer = os.pipe()
            mine, theirs = (writer, reader) if number == 0 else (reader, writer)
            self.ends[number] = mine
        elif wanted == subprocess.DEVNULL:
            theirs = os.open(os.devnull, os.O_RDWR)
        elif wanted == subprocess.STDOUT:
            theirs = os.dup(self.given[1])
        else:
            theirs = os.dup(
                number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno()
            )
        self.given.append(theirs)
        self._to_close.append(theirs)

    def close_given(self) -> None:
        for file in self._to_close:
            os.close(file)


def _files_of_child(*wanted: Any) -> _FilesOfChild:
    files = _FilesOfChild()
    for each in wanted:
        files.add(each)
    return files


class WarmProcess:
    """Stand-in for `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._handle = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._handle, self._reap)

    async def connect(self, child: _FilesOfChild) -> None:
        """Connect the streams to the pipes."""
        if 0 in child.ends:
            transport, protocol = await self._loop.connect_write_pipe(
                lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()),
                os.fdopen(child.ends[0], "wb", 0),
            )
            self.stdin = asyncio.StreamWriter(transport, protocol, None, self._loop)
        self.stdout, self.stderr = [await self._reader(child.ends.get(number)) for number in (1, 2)]

    async def _reader(self, end: int | None) -> asyncio.StreamReader | None:
        if end is None:
            return None
        reader = asyncio.StreamReader()
        await self._loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(end, "rb", 0)
        )
        return reader

    def _reap(self) -> None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._loop.remove_reader(self._handle)
            os.close(self._handle)
            self.returncode = os.waitstatus_to_exitcode(status)
            self._ended.set_result(None)

    async def wait(self) -> int:
        await asyncio.shield(self._ended)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


# --- the helper ---------------------------------------------------------------------------------------------


def _fork_on_request(connection: socket.socket, program: int) -> tuple[dict[str, Any], list[int]]:
    """Fork on request until the program is gone. Returns in a child only, with what to run."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    while True:
        length, files, _, _ = socket.recv_fds(connection, 4, 3)
        if not length or os.getppid() != program:
            os._exit(0)
        request = json.loads(read_exactly(connection, int.from_bytes(length, "big")))
        middle = os.fork()
        if middle:
            os.waitpid(middle, 0)
            for file in files:
                os.close(file)
            continue
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        _wait_for_parent(program, middle)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if request["session"]:
            os.setsid()
            request["session"] = False
        connection.sendall(str(os.getpid()).encode())
        connection.close()
        return request, files


def _wait_for_parent(program: int, middle: int) -> None:
    """Wait until the program is the parent, and end if it has ended."""
    LIBC.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    end = time.monotonic() + START_SECONDS
    while (parent := os.getppid()) != program:
        if parent != middle or time.monotonic() > end:
            os._exit(1)
        time.sleep(0.0005)
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != program:
        os._exit(1)


def read_exactly(connection: socket.socket, length: int) -> bytes:
    parts = array.array("B")
    while len(parts) < length:
        parts.frombytes(connection.recv(length - len(parts)))
    return parts.tobytes()


def _prepare_child(stdin: int, arguments: list[str]) -> None:
    """Take standard input, and keep what was imported where it is: it is shared, and moving it takes time."""
    if arguments[0] == "-m":
        # For tests that look for the engine among children.
        LIBC.prctl(PR_SET_NAME, arguments[1].rpartition(".")[2].encode()[:15], 0, 0, 0)
    from mamba_server.engine.process_memory import cold_memory, library_pages

    os.dup2(stdin, 0)
    os.close(stdin)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    cold_memory.put_imports_aside = lambda _: 0
    library_pages.give_back_libraries = lambda: None
