"""`Processes`: starts, signals and reaps child processes, and reports their ends through one callback.

Each child has its own session, so that Ctrl-C in the terminal reaches only the supervisor. The kernel sends a
child SIGTERM when the supervisor dies for any reason.
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
"""Function that is called when a child ends, with its name, its exit code and a reason; a child that could
not start has the exit code None."""

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Processes:
    """Starts and ends child processes by name.

    The output of each goes to a log file of its own below `logs`.
    """

    def __init__(self, logs: Path, on_exit: ExitCallback) -> None:
        self._logs = logs
        self._on_exit = on_exit
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._waits: set[asyncio.Task[None]] = set()
        self._begins: dict[str, int] = {}
        """Offset in each child's log, in bytes, at which the output since its last start begins."""

    async def start(self, name: str, command: Command) -> None:
        """Write the settings file and start the child; a failure is reported through the callback."""
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
                    preexec_fn=lambda: die_with(parent),
                )
        except (OSError, ValueError) as error:
            # A null byte in an argument or the environment raises ValueError.
            self._on_exit(name, None, _reason(error))
            return
        self._running[name] = process
        task = asyncio.create_task(self._wait(name, process))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a child that still runs."""
        if (process := self._running.get(name)) is not None and process.returncode is None:
            process.send_signal(number)

    def log(self, name: str) -> Path:
        """Return the path of the child's log."""
        return self._logs / f"{name}.log"

    def tail(self, name: str, lines: int = 12) -> list[str]:
        """Return the child's last lines since its last start, except log lines of level info or debug."""
        try:
            with self.log(name).open("rb") as file:
                begins = self._begins.get(name, 0)
                first = max(begins, self.log(name).stat().st_size - 16_384)
                file.seek(first)
                text = file.read(16_384).decode("utf-8", "replace")
        except OSError:
            return []
        written = text.splitlines()
        if first > begins and len(written) > 1:
            del written[0]  # the end of a line whose level is cut off
        return [line for line in written if line.strip(" \t\0") and not _is_informational(line)][-lines:]

    def full(self, name: str) -> bool:
        """Return whether the disk has no room for another line in the child's log."""
        try:
            with self.log(name).open("ab") as log:
                log.write(b"\n")
            space = os.statvfs(self._logs)
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        return space.f_blocks > 0 and space.f_bavail == 0

    async def close(self) -> None:
        """Kill and reap the children that are left; after an orderly end there are none."""
        for process in self._running.values():
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*self._waits, return_exceptions=True)

    async def _wait(self, name: str, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if self._running.get(name) is process:
            del self._running[name]
        self._on_exit(name, code, "")


def _is_informational(line: str) -> bool:
    """Return whether a line is a JSON log record of level debug or info."""
    if not line.startswith("{"):
        return False
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("level") in ("debug", "info")


def _reason(error: Exception) -> str:
    """Return the message of an error, with the file that it names, if any."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def die_with(parent: int) -> None:
    """Make the kernel send this process SIGTERM when `parent` dies; exit if `parent` is already dead.

    Called in the child before exec.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
