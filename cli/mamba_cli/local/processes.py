"""Starts, signals and reaps child processes; tells what happened through one callback.

Children get a session of their own, so that Ctrl-C in the terminal reaches only the supervisor, and SIGTERM
from the kernel when the supervisor is gone, however it went.
"""

import asyncio
import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from mamba_cli.local.unit import Command

ExitCallback = Callable[[str, int | None, str], None]
"""(name, exit code or None when it could not start, reason)."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Processes:
    """Children by name; output goes to one log file each below `logs`."""

    def __init__(self, logs: Path, on_exit: ExitCallback) -> None:
        self._logs = logs
        self._on_exit = on_exit
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._begins: dict[str, int] = {}
        """Where in its log each child's present life begins, in bytes."""

    async def start(self, name: str, command: Command) -> None:
        """Write its document and start it; a failure is reported through the callback like any other end."""
        parent = os.getpid()
        try:
            if command.file is not None:
                command.file.write_text(command.document, encoding="utf-8")
            with self.log(name).open("ab") as log:
                self._begins[name] = log.tell()
                process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    env={**os.environ, **command.environment},
                    start_new_session=True,
                    preexec_fn=lambda: _die_with(parent),
                )
        except (OSError, ValueError) as error:
            # ValueError: a null byte among the arguments or in the environment.
            self._on_exit(name, None, _because(error))
            return
        self._running[name] = process
        task = asyncio.create_task(self._wait(name, process))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def send(self, name: str, number: signal.Signals) -> None:
        """Signal a child, if it still runs."""
        if (process := self._running.get(name)) is not None and process.returncode is None:
            process.send_signal(number)

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 12) -> list[str]:
        """The last lines the child wrote since it was last started, without those that only inform."""
        try:
            with self.log(name).open("rb") as file:
                begins = self._begins.get(name, 0)
                first = max(begins, self.log(name).stat().st_size - 16_384)
                file.seek(first)
                text = file.read(16_384).decode("utf-8", "replace")
        except OSError:
            return []
        said = text.splitlines()
        if first > begins and len(said) > 1:
            del said[0]  # the end of a line, of which nobody can tell whether it only informs
        return [line for line in said if line.strip(" \t\0") and not _informs(line)][-lines:]

    def full(self, name: str) -> bool:
        """Whether there is no room for another line in the child's log: it cannot say what it dies of."""
        try:
            with self.log(name).open("ab") as log:
                log.write(b"\n")
            space = os.statvfs(self._logs)
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        return space.f_blocks > 0 and space.f_bavail == 0

    async def close(self) -> None:
        """Kill and reap whatever is left: after an orderly end that is nothing."""
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*self._waits, return_exceptions=True)

    async def _wait(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if self._running.get(name) is process:
            del self._running[name]
        self._on_exit(name, code, "")


def _informs(line: str) -> bool:
    """Whether a line is one of the log lines that go well: requests answered, stages passed."""
    if not line.startswith("{"):
        return False
    try:
        said = json.loads(line)
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("level") in ("debug", "info")


def _because(error: Exception) -> str:
    """What went wrong, with the file where there is one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _die_with(parent: int) -> None:
    """In the child, before exec: SIGTERM when the parent dies, also if it is dead by now."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
