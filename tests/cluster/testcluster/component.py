"""One background process of a test cluster: its log, its readiness, its end.

Used by `control_plane` and `node`. Ends only the process it started, and lets it die with us (where the
machine has setpriv), so that a killed test run leaves no server behind.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from testcluster.errors import NotReady

TAIL_LINES = 25


class Component:
    """A process that can be stopped and started again with the same command; its log is appended to."""

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.argv = [str(part) for part in argv]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self.running else None

    def start(self) -> None:
        """Start the process; a running one is left alone."""
        if self.running:
            return
        setpriv = shutil.which("setpriv")
        bound = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*bound, *self.argv],
                stdin=subprocess.DEVNULL,
                # A cluster of tests is small and short-lived: less collecting, more memory; on one core a
                # start takes three quarters of the processor time.
                env={"GOGC": "400", "GOMAXPROCS": "1", **os.environ},
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is for the tests; they stop their components in order.
                start_new_session=True,
            )

    def stop(self, *, grace: float = 10.0) -> None:
        """Request the end of the process and kill it after `grace` seconds; 0 kills it at once."""
        if self._process is None:
            return
        if grace > 0 and self.running:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
        if self.running:
            self._process.kill()
        self._process.wait()

    def tail(self) -> str:
        """Return the last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        except FileNotFoundError:
            return ""

    def wait_until(self, ready: Callable[[], bool], *, timeout: float, what: str) -> None:
        """Wait until `ready` returns true. Raises NotReady when the process ends before, or time is up."""
        deadline = time.monotonic() + timeout
        while not ready():
            if not self.running:
                raise NotReady(f"{self.name} ended with {self._ending()} before {what}.\n{self.tail()}")
            if time.monotonic() > deadline:
                raise NotReady(f"{self.name}: not {what} within {timeout:g} s.\n{self.tail()}")
            time.sleep(0.05)

    def _ending(self) -> str:
        code = self._process.returncode if self._process else 0
        return f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
