"""Python processes that start in milliseconds: forked from one that has imported what they need.

The first start in a process of pytest brings up a server that has imported `MODULES` and forks a child for
each start, with its own arguments, environment, folder and files, as `subprocess.Popen` would. A child
is the server's; its exit code comes through a pipe. Imports apart, it is a process like any other.

The server of a worker that was forked from a nursery is forked itself, from the processes of
`shared_imports`, which import the same for all workers.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO, Any, NoReturn

import shared_imports
import warm_children

PR_SET_PDEATHSIG = 1
MODULES = (
    "mamba_cli.commands.gateway",
    "mamba_cli.commands.operate",
    "mamba_cli.commands.plan",
    "mamba_cli.commands.serve",
    "mamba_cli.local.loading.loading_progress",
    "mamba_cli.main",
    "mamba_gateway.process.server",
    "mamba_operator.main",
    "mamba_server.api.server",
    "pydantic.v1",  # FastAPI imports it when the first route is added
    "rich.progress",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.httptools_impl",
)


class ForkedProcess:
    """Stand-in for `subprocess.Popen` whose process is waited for elsewhere."""

    def __init__(self, pid: int, ended: int, stdout: IO[str] | None, stderr: IO[str] | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout, self.stderr = stdout, stderr
        self._ended = ended

    def poll(self) -> int | None:
        with selectors.DefaultSelector() as selector:
            return self._poll(selector, 0)

    def wait(self, timeout: float | None = None) -> int:
        with selectors.DefaultSelector() as selector:
            code = self._poll(selector, timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def _poll(self, selector: selectors.BaseSelector, timeout: float | None) -> int | None:
        if self.returncode is None:
            selector.register(self._ended, selectors.EVENT_READ)
            if selector.select(timeout):
                # Nothing but the end of the file: the server went, and its children with it.
                self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)
                os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Read no more of what it prints."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()


class ForkServer:
    """The client's side: one server for each process of pytest, brought up when it is first needed.

    Programs whose children are warm come from a second server, because torch would count to the memory of
    the others.
    """

    def __init__(self, *, warm: bool = False) -> None:
        self._is_warm = warm
        self._warm_server: ForkServer | None = None
        self.process_id = 0
        self._socket: socket.socket | None = None
        self._owner = 0
        self._one = threading.Lock()

    def start(
        self,
        *argv: str,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: int = PIPE,
        stderr: int = PIPE,
        start_new_session: bool = False,
        warm: bool = False,
    ) -> ForkedProcess:
        """Start `python *argv`: `-c CODE …`, `-m MODULE …` or `FILE …`.

        The rest is as in `subprocess.Popen`, but for `warm`: whether children that
        the program starts are forked from what is imported, too.
        """
        if warm and not self._is_warm:
            server = self._server_of_warm_programs()
            return server.start(
                *argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr, start_new_session=start_new_session
            )
        out, out_reader = _sink(stdout)
        err, err_reader = (out, None) if stderr == STDOUT else _sink(stderr)
        ended, end = os.pipe()
        request = {
            "argv": argv,
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "session": start_new_session,
            "warm": self._is_warm,
        }
        message = json.dumps(request).encode()
        with self._one:
            if self._socket is None or self._owner != os.getpid():
                self._launch()
            assert self._socket is not None
            try:
                socket.send_fds(self._socket, [len(message).to_bytes(4, "big")], [out, err, end])
                self._socket.sendall(message)
                pid = int(self._socket.recv(16))
            except BaseException:
                # A test that takes too long is interrupted, and the next one must not get its answer.
                self._socket.close()
                self._socket = None
                for file in {out, err, end, ended} - {stdout, stderr}:
                    os.close(file)
                for reader in (out_reader, err_reader):
                    if reader is not None:
                        reader.close()
                raise
        for each in {out, err, end} - {stdout, stderr}:  # what came from the caller stays the caller's
            os.close(each)
        return ForkedProcess(pid, ended, out_reader, err_reader)

    def run(
        self,
        *argv: str,
        env: Mapping[str, str],
        cwd: Path | None = None,
        timeout: float = 180,
        warm: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Start it and wait for its end."""
        process = self.start(*argv, env=env, cwd=cwd, warm=warm)
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr, ThreadPoolExecutor(1) as reader:
            errors = reader.submit(process.stderr.read)
            output = process.stdout.read()
            return subprocess.CompletedProcess(argv, process.wait(timeout), output, errors.result())

    def _server_of_warm_programs(self) -> ForkServer:
        with self._one:
            if self._warm_server is None:
                self._warm_server = ForkServer(warm=True)
            return self._warm_server

    def _launch(self) -> None:
        self._owner = os.getpid()
        if shared_imports.folder:
            self._socket, self.process_id = shared_imports.connect(warm=self._is_warm)
            wait: Callable[[], object] = partial(shared_imports.wait_for_end, self.process_id)
        else:
            self._socket, theirs = socket.socketpair()
            with theirs:
                server = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno()), *(["warm"] if self._is_warm else [])],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **warm_children.ONE_THREAD},
                )
            self.process_id = server.pid
            wait = partial(server.wait, 10)
        atexit.register(self._end, self._socket, os.getpid(), wait)

    @staticmethod
    def _end(connection: socket.socket, owner: int, wait: Callable[[], object]) -> None:
        if os.getpid() == owner:
            connection.close()
            wait()


def _sink(wanted: int) -> tuple[int, IO[str] | None]:
    if wanted != PIPE:
        return wanted, None
    reader, writer = os.pipe()
    return writer, os.fdopen(reader)


FORK_SERVER = ForkServer()


# --- the server -------------------------------------------------------------------------------------------


def _import(modules: Sequence[str]) -> None:
    gc.disable()  # nothing of what is imported will be garbage
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.enable()
    gc.freeze()  # children share these pages for as long as nobody writes to them


def _serve(connection: socket.socket, *, warm: bool) -> None:
    """Fork on request until the other side is gone."""
    warm_children.adopt_orphans()
    running: dict[int, int] = {}
    # A byte for each child that ends.
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    selector.register(ended, selectors.EVENT_READ)
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if ended in ready:
            os.read(ended, 4096)
            _reap(running)
        if connection.fileno() in ready:
            length, files, _, _ = socket.recv_fds(connection, 4, 3)
            if not length:
                _kill(running)
                return
            request = json.loads(warm_children.read_exactly(connection, int.from_bytes(length, "big")))
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                selector.close()
                for each in (ended, wake, files[2], *running.values()):
                    os.close(each)
                connection.close()
                _become(request, files[:2])
            for each in files[:2]:
                os.close(each)
            running[pid] = files[2]
            try:
                connection.sendall(str(pid).encode())
            except BrokenPipeError:
                _kill(running)
                return


def _reap(running: dict[int, int]) -> None:
    """Report the end of each child that has ended, and bury orphans."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            if (pipe := running.pop(pid, None)) is not None:
                # Nobody reads it where the process that asked for the child has ended.
                with contextlib.suppress(BrokenPipeError):
                    os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(pipe)


def _kill(running: dict[int, int]) -> None:
    """Kill the children: no other process could end them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in running:
            os.kill(pid, number)
        deadline = time.monotonic() + 2
        while running and time.monotonic() < deadline:
            _reap(running)
            time.sleep(0.01)


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    """Become the requested program in the child. Raises SystemExit as that program does."""
    if sys.platform == "linux":
        # Whoever kills pytest with all its processes kills the server before it can end its children.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if request["session"]:
        os.setsid()
    for target, each in enumerate(files, 1):
        os.dup2(each, target)
        os.close(each)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    kind, *arguments = request["argv"]
    if request["warm"] and sys.platform == "linux":
        warm_children.lend_imports(_become)
    unbuffered = "PYTHONUNBUFFERED" in request["env"]
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stdout.reconfigure(write_through=unbuffered)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[0] = request["cwd"]
    try:
        _run(kind, arguments)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
            end.code = 1
        _exit(end.code or 0)
    _exit(0)


def _run(kind: str, arguments: list[str]) -> None:
    """Run the program."""
    if kind == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [kind, *arguments]
        sys.path[0] = str(Path(kind).parent)
        runpy.run_path(kind, run_name="__main__")


def _exit(code: int) -> NoReturn:
    """End as Python does, but leave what was imported to the kernel: to free torch takes half a second."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code & 0xFF)


if __name__ == "__main__":
    if sys.argv[1] == "shared":
        shared_imports.lend(
            sys.argv[2], lambda: _import(MODULES), lambda: _import(warm_children.MODULES), _serve
        )
    else:
        is_warm = "warm" in sys.argv
        _import(MODULES + (warm_children.MODULES if is_warm else ()))
        _serve(socket.socket(fileno=int(sys.argv[1])), warm=is_warm)
