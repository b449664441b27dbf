"""Process 2: sockets on one side, the engine core on the other.

Reads messages between steps, sends deltas after each, statistics twice a second. Ends when told, when its
parent is gone, or with `Fatal` when it cannot start.
"""

import time
from collections.abc import Callable, Iterator

import zmq

from mamba_server import wire
from mamba_server.cache import ledger
from mamba_server.engine.admin import Admin
from mamba_server.engine.core import EngineCore
from mamba_server.engine.errors import DeviceLost
from mamba_server.engine.garbage import search_new_objects
from mamba_server.engine.stats import collect
from mamba_server.wire import (
    AbortRequest,
    AddRequest,
    AdminCall,
    EngineStats,
    Fatal,
    FromEngine,
    Outputs,
    Progress,
    Ready,
    Shutdown,
    StopSequence,
    ToEngine,
)

STATS_SECONDS = 0.5
CHANGES_SECONDS = 0.05
"""Between two messages about checkpoints."""
MOST_MESSAGES = 32
"""Taken in between two steps: a burst of thousands must not stop the answers that are being written."""
CHECK_SECONDS = 0.002
"""How long the recount goes on before it looks for messages."""


class Port:
    """The engine's two sockets."""

    def __init__(self, to_engine: str, from_engine: str) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.set_hwm(0)
        self._pull.connect(to_engine)
        self._push = self._context.socket(zmq.PUSH)
        self._push.set_hwm(0)
        self._push.setsockopt(zmq.LINGER, 2000)
        self._push.connect(from_engine)
        self._decode: Callable[[bytes], ToEngine] = wire.decoder(ToEngine).decode
        self._encode = wire.encoder().encode

    def send(self, message: FromEngine) -> None:
        self._push.send(self._encode(message))

    def receive(self, timeout: float) -> list[ToEngine]:
        """What has come, a few at most; waits up to `timeout` seconds for the first."""
        out: list[ToEngine] = []
        if timeout > 0 and not self._pull.poll(int(timeout * 1000)):
            return out
        while len(out) < MOST_MESSAGES:
            try:
                out.append(self._decode(self._pull.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return out

    def close(self) -> None:
        self._pull.close()
        self._push.close()
        self._context.term()


class EngineProcess:
    """The loop around one core."""

    def __init__(
        self, core: EngineCore, admin: Admin, port: Port, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._core = core
        self._admin = admin
        self._port = port
        self._clock = clock
        self._next_stats = 0.0
        self._next_changes = 0.0
        self._checked = True
        self._audit: Iterator[None] | None = None
        """The recount under way; whatever comes in makes it void."""

    def run(self, ready: Ready) -> None:
        """Serve until `Shutdown` comes. Raises LedgerViolation where the books are wrong, DeviceLost."""
        self._port.send(ready)
        stalled = False
        while True:
            resting = self._core.idle and self._audit is None
            rest = CHANGES_SECONDS if self._core.checkpoint_changes.pending else STATS_SECONDS
            for message in self._port.receive(rest if resting else 0.001 if stalled else 0.0):
                if isinstance(message, Shutdown):
                    return
                self._take(message)
            before = self._core.step_number
            deltas = self._core.step()
            stalled = self._core.step_number == before and not deltas
            if deltas:
                self._port.send(Outputs(deltas))
            if self._core.lost:
                raise DeviceLost(self._core.lost)
            self._after_step()

    def _take(self, message: ToEngine) -> None:
        self._checked = False
        self._audit = None
        match message:
            case AddRequest():
                rejected = self._core.add(message)
                if rejected is not None:
                    self._port.send(rejected)
            case StopSequence():
                self._core.stop(message)
            case AbortRequest():
                self._core.abort(message)
            case AdminCall():
                self._port.send(self._admin.answer(message))

    def _after_step(self) -> None:
        search_new_objects()
        if self._core.idle and not self._checked:
            self._check()
        now = self._clock()
        if now >= self._next_changes and (changes := self._core.checkpoint_changes.take()) is not None:
            self._next_changes = now + CHANGES_SECONDS
            self._port.send(changes)
        if now >= self._next_stats:
            self._send_stats()

    def _check(self) -> None:
        """Go on with the recount that idle time pays for: a leak is found where it is made.

        A request that comes waits for milliseconds of it, however large the cache is.
        """
        if self._audit is None:
            self._send_stats()
            self._audit = ledger.audit(self._core.cache)
        began = self._clock()
        for _ in self._audit:
            if self._clock() - began > CHECK_SECONDS:
                return
        self._audit = None
        self._checked = True

    def _send_stats(self) -> None:
        self._next_stats = self._clock() + STATS_SECONDS
        stats: EngineStats = collect(self._core)
        self._port.send(stats)


Report = Callable[[str, int, int], None]


def report_progress(port: Port) -> Report:
    """A callback (stage, done, total) that tells the API process, at most ten times a second."""
    last = 0.0

    def report(stage: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done in (0, total) or now - last > 0.1:
            last = now
            port.send(Progress(stage, done, total))

    return report


def say_fatal(port: Port, message: str, exit_code: int) -> None:
    port.send(Fatal(message, exit_code))
