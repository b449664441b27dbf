"""Detection of engines that hang: after a period of silence, `/livez` shows whether the engine is alive.

An attempt whose answer keeps arriving needs one timer. An engine is checked only after the period of silence,
and one check serves all attempts at that engine. Used by the relay; the prober reports engines that it
doubts.
"""

import asyncio
import math
from types import TracebackType
from typing import Any, Self

from mamba_gateway.upstream.connection import ConnectionLost, EngineUnreachable, IdleTimeout
from mamba_gateway.upstream.connector import UpstreamConnector
from mamba_gateway.upstream.deadlines import Deadlines, Interrupt

MAX_ENGINES = 1024
"""Number of engines for which the last successful check is remembered; the oldest is dropped first."""


class LivenessChecks:
    """Liveness checks of all engines.

    At most one check of an engine runs at a time, for at most `timeout` seconds, and all callers share its
    result. Any status below 500 counts as alive, because other inference servers have no `/livez`.
    """

    def __init__(self, connector: UpstreamConnector, timeout: float, seconds: float) -> None:
        """Create the checks. `seconds`: period for which an engine may be silent before it is checked."""
        self._connector, self._timeout = connector, timeout
        self.silence = Deadlines(connector.loop, seconds)
        self.loop = connector.loop
        self._last_alive: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[bool]] = {}
        self._waiting: dict[str, int] = {}
        self.watches: set[SilenceWatch] = set()
        """Watches of all attempts under way."""

    def doubt(self, base: str, since: float) -> None:
        """Check the engine at once for the attempts that have received nothing since `since` (loop time).

        Called when the engine has not answered a request or a probe that was sent then: these attempts need
        not wait for the period of silence.
        """
        for watch in [watch for watch in self.watches if watch.base == base]:
            watch.doubt(since)

    def last_alive(self, base: str) -> float:
        """Return the loop time at which the engine's last successful check began; -inf = never."""
        return self._last_alive.get(base, -math.inf)

    async def check(self, base: str) -> bool:
        """Return whether the engine is alive. If all callers are cancelled, the check is cancelled."""
        if (task := self._tasks.get(base)) is None:
            task = self._tasks[base] = asyncio.create_task(self._probe(base))
        self._waiting[base] = self._waiting.get(base, 0) + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[base] -= 1
            if not self._waiting[base]:
                del self._waiting[base], self._tasks[base]
                task.cancel()

    async def _probe(self, base: str) -> bool:
        begin = self.loop.time()
        try:
            async with asyncio.timeout(self._timeout):
                answer, _ = await self._connector.send(base, "GET /livez", (), b"")
        except (EngineUnreachable, ConnectionLost, IdleTimeout, TimeoutError):
            return False
        answer.close()
        if answer.status < 500:
            self._last_alive.pop(base, None)
            self._last_alive[base] = begin
            if len(self._last_alive) > MAX_ENGINES:
                del self._last_alive[next(iter(self._last_alive))]
            return True
        return False


class SilenceWatch(Interrupt):
    """Block that raises TimeoutError if the engine is silent for the period and then fails a liveness check.

    `task` runs the block; `checks` defines the period. `fired` is True after the watch has raised.
    """

    __slots__ = ("_check_task", "_checks", "_last_activity", "_loop", "_timer", "base")

    def __init__(self, checks: LivenessChecks, base: str, task: asyncio.Task[Any]) -> None:
        # The steps of the base class are repeated here and below, because every request would pay for a call.
        self._owner, self.fired, self._task, self._cancelling = task, False, None, 0
        self._checks, self.base = checks, base
        self._loop = checks.loop
        self._last_activity = 0.0
        self._check_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Timer for the rest of the period, if bytes have arrived since the period began."""

    def record_activity(self) -> None:
        """Record that bytes have arrived from the engine."""
        self._last_activity = self._loop.time()

    def __enter__(self) -> Self:
        self._task, self._cancelling = self._owner, self._owner.cancelling()
        self._last_activity = self._checks.silence.begin(self)
        self._checks.watches.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._checks.watches.discard(self)
        self._end_period()
        if self._check_task is not None:
            self._check_task.cancel()
        if self.fired:
            Interrupt.__exit__(self, kind, error, trace)
        self._task = None

    def expire(self) -> None:
        """Check the engine if it has been silent for the whole period."""
        # A check for another attempt may have succeeded in the meantime.
        left = (
            max(self._last_activity, self._checks.last_alive(self.base))
            + self._checks.silence.seconds
            - self._loop.time()
        )
        if left > 0:
            self._timer = self._loop.call_later(left, self.expire)
        else:
            self._begin_check()

    def doubt(self, since: float) -> None:
        """Check the engine now, unless bytes have arrived from it since `since`."""
        if self._last_activity <= since and self._check_task is None:
            self._end_period()
            self._begin_check()

    def _end_period(self) -> None:
        self._checks.silence.end(self)
        if self._timer is not None:
            self._timer.cancel()

    def _begin_check(self) -> None:
        self._check_task = asyncio.create_task(self._check(self._last_activity))

    async def _check(self, last_activity: float) -> None:
        lives = await self._checks.check(self.base)
        self._check_task = None
        if last_activity != self._last_activity or lives:
            self.expire()
        else:
            super().expire()
