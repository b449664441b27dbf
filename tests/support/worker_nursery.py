"""The process that has imported all tests and forks workers of pytest-xdist, and the program that asks it to.

`forked_workers` starts both. As a program, this module passes its own files to the nursery and ends with the
exit code of the worker that the nursery forks for them. A worker takes over what the nursery has collected
(`inherited_collection`). Where the nursery ends or cannot collect, the program becomes Python instead, and
the worker imports and collects all tests itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from inherited_collection import Collection

PR_SET_PDEATHSIG = 1
FORKED = b"f"
"""Answer to a request: the files are a worker's now."""


def _connect(address: str, *arguments: str) -> NoReturn:
    """Hand this process's files to the nursery and end with the exit code of the worker that it forks."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"w"], [0, 1, 2])
        if connection.recv(1) == FORKED:
            # The controller sees the worker's end by the end of its output.
            for file in (0, 1):
                os.close(file)
            sys.exit(int(connection.recv(16) or -signal.SIGKILL))
    os.execv(sys.executable, [sys.executable, *arguments])


def serve(control: int, listener: int) -> None:
    """Collect, then fork for each request until the controller is gone; in a worker, run the tests."""
    handle_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = json.load(sys.stdin)
    sys.path[:] = order["path"]
    collection = _collect(order["args"], order["folder"])
    if collection is None:
        return
    # A forked process has no other threads. Those of numpy's BLAS begin anew in it, those of OpenMP would be
    # waited for without end.
    threads = len(os.listdir("/proc/self/task"))
    assert threading.active_count() == 1, "importing the tests has started a thread"
    assert threads <= (os.cpu_count() or 1), "importing the tests has computed in several threads"
    with socket.socket(fileno=control) as controller, socket.socket(fileno=listener) as requests:
        files = _fork_on_request(controller, requests)
    if files is None:
        os._exit(0)  # what the tests imported takes a second to end in order
    signal.signal(signal.SIGINT, handle_interrupt)
    collection.hand_over()
    _become_worker(files)


def _collect(args: list[str], folder: str) -> Collection | None:
    """Return what these arguments of pytest collect, for all workers; None where pytest refuses them.

    Beside this, as soon as a test module needs them, the imports begin that fork servers share.
    `folder`: of the sockets of these.
    """
    import pytest

    import shared_imports  # by the path that pytest has set
    import warm_children
    from inherited_collection import Collection

    lenders: list[shared_imports.Lender] = []

    class MoreImports:
        """A plugin that starts the imports of fork servers, and imports what tests will import later."""

        def pytest_collectreport(self) -> None:
            if not lenders and "prefork" in sys.modules:
                environment = {**os.environ, **warm_children.ONE_THREAD}
                lenders.append(shared_imports.Lender(folder, environment))

        def pytest_sessionfinish(self) -> None:
            # Before the end of pytest, which has to rewrite its plugins among what is imported.
            if checkpoints := sys.modules.get("testmodels.checkpoints"):
                _import_families(checkpoints)

    alone = ["-n0", "--dist=no", "--collect-only", "-qqq", "-p", "no:cacheprovider"]
    collection = Collection()
    code = pytest.main([*args, *alone], [MoreImports(), collection])
    import cpu_times

    imports = sum(cpu_times.of_process(lender.wait()) for lender in lenders)
    cpu_times.before_fork = {
        cpu_times.COLLECTION: cpu_times.total() - imports,
        cpu_times.SHARED_IMPORTS: imports,
    }
    gc.disable()  # as tests/conftest.py does, which a worker does not run again
    gc.collect()
    gc.freeze()
    return collection if code in (pytest.ExitCode.OK, pytest.ExitCode.INTERRUPTED) else None


def _import_families(checkpoints: ModuleType) -> None:
    """Import the models of transformers that `checkpoints` writes; each worker would take four seconds."""
    import importlib

    from transformers import AutoModelForCausalLM  # noqa: F401 - its first use imports more
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    for name, fields in vars(checkpoints).items():
        if name.startswith("SMALL") and "model_type" in fields:
            family = model_type_to_module_name(fields["model_type"])
            importlib.import_module(f"transformers.models.{family}.modeling_{family}")


def _fork_on_request(controller: socket.socket, requests: socket.socket) -> list[int] | None:
    """Return the files of a worker in each forked process, and None where the controller is gone."""
    import cpu_times

    workers: dict[int, socket.socket] = {}
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    with selectors.DefaultSelector() as selector:
        for each in (controller, requests, ended):
            selector.register(each, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            for pid, connection in list(workers.items()):
                if connection in ready:  # the controller has killed `_connect`
                    os.kill(pid, signal.SIGKILL)
                    selector.unregister(connection)
            if ended in ready:
                os.read(ended, 4096)
                for pid in _reap(workers):
                    connection = workers.pop(pid)
                    with contextlib.suppress(KeyError):
                        selector.unregister(connection)
                    connection.close()
            if requests in ready:
                connection, _ = requests.accept()
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for each in (ended, wake):
                        os.close(each)
                    for each in (connection, *workers.values()):
                        each.close()
                    return files
                cpu_times.before_fork = {}
                for file in files:
                    os.close(file)
                workers[pid] = connection
                selector.register(connection, selectors.EVENT_READ)
                connection.sendall(FORKED)
            if controller in ready:
                return None


def _reap(workers: dict[int, socket.socket]) -> list[int]:
    """Tell `_connect` the exit code of each worker that has ended; return their process ids."""
    gone = []
    for pid, connection in workers.items():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            gone.append(pid)
            with contextlib.suppress(OSError):
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return gone


def _become_worker(files: list[int]) -> NoReturn:
    """Do as `python -u -c CODE` does, where the first line of its input is the program."""
    # Whoever kills the nursery ends the workers.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for target, each in enumerate(files):
        os.dup2(each, target)
        os.close(each)
    if "torch" in sys.modules:
        # There are more workers than cores, and threads of OpenMP wait for each other by computing.
        sys.modules["torch"].set_num_threads(1)
    sys.argv = ["-c"]
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    raise SystemExit(0)


if __name__ == "__main__":
    _connect(*sys.argv[1:])
