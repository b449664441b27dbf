"""A look at an engine that says nothing: one that is busy says so at `/livez`, one that is wedged does not.

Around one attempt. As long as bytes come it costs a timer; nothing is asked before the silence has lasted,
and what one attempt was told counts for all that go on at the engine.
"""

import asyncio
import math
from types import TracebackType
from typing import Any, Self

from mamba_gateway.upstream.connection import EngineUnreachable
from mamba_gateway.upstream.connector import UpstreamConnector
from mamba_gateway.upstream.deadlines import Deadlines
from mamba_gateway.upstream.interrupt import Interrupt
from mamba_gateway.upstream.response import ConnectionLost, IdleTimeout

MOST_ENGINES = 1024
"""That are remembered; the one that was asked longest ago goes first."""


class LivenessChecks:
    """Of all engines: when each said last that it lives. An engine is asked one question at a time, whose
    answer, awaited for `patience` seconds at most, is for all that want to know. Any answer below 500 is a
    sign of life: engines of other kinds have no such route."""

    def __init__(self, connector: UpstreamConnector, patience: float, seconds: float) -> None:
        """`seconds`: how long an engine may be silent until it is asked."""
        self._connector, self._patience = connector, patience
        self.silence = Deadlines(connector.loop, seconds)
        self.loop = connector.loop
        self._last: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[bool]] = {}
        self._waiting: dict[str, int] = {}

    def last(self, base: str) -> float:
        """When the engine was asked the last question that it answered, by the loop's clock; -inf = never."""
        return self._last.get(base, -math.inf)

    async def ask(self, base: str) -> bool:
        """Whether the engine lives. Who is cancelled ends the question only if nobody else waits for it."""
        if (task := self._asking.get(base)) is None:
            task = self._asking[base] = asyncio.create_task(self._ask(base))
        self._waiting[base] = self._waiting.get(base, 0) + 1
        try:
            return await asyncio.shield(task)
        finally:
            self._waiting[base] -= 1
            if not self._waiting[base]:
                del self._waiting[base], self._asking[base]
                task.cancel()

    async def _ask(self, base: str) -> bool:
        begin = self.loop.time()
        try:
            async with asyncio.timeout(self._patience):
                answer, _ = await self._connector.send(base, "GET /livez", (), b"")
        except (EngineUnreachable, ConnectionLost, IdleTimeout, TimeoutError):
            return False
        answer.close()
        if answer.status < 500:
            self._last.pop(base, None)
            self._last[base] = begin
            if len(self._last) > MOST_ENGINES:
                del self._last[next(iter(self._last))]
            return True
        return False


class SilenceWatch(Interrupt):
    """Raises TimeoutError in its block, which is in `task`, once the engine was silent for as long as `signs`
    say and does not say that it lives; then it has `fired`: the engine was given up."""

    __slots__ = ("_base", "_heard", "_look", "_loop", "_signs", "_timer")

    def __init__(self, signs: LivenessChecks, base: str, task: asyncio.Task[Any]) -> None:
        # What the base class does stands here again: each request comes through.
        self._of, self._task, self._cancelling, self.fired = task, None, 0, False
        self._signs, self._base = signs, base
        self._loop = signs.loop
        self._heard = 0.0
        self._look: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """For what is left behind the first time."""

    def heard(self) -> None:
        """Bytes came."""
        self._heard = self._loop.time()

    def __enter__(self) -> Self:
        self._task, self._cancelling = self._of, self._of.cancelling()
        self._heard = self._signs.silence.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._signs.silence.end(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
        if self.fired:
            super().__exit__(kind, error, trace)
        else:
            self._task = None

    def expire(self) -> None:
        """Its engine may have been silent for too long."""
        # Another stream may have been told in between that the engine lives.
        left = (
            max(self._heard, self._signs.last(self._base)) + self._signs.silence.seconds - self._loop.time()
        )
        if left > 0:
            self._timer = self._loop.call_later(left, self.expire)
        else:
            self._look = asyncio.create_task(self._ask(self._heard))

    async def _ask(self, heard: float) -> None:
        lives = await self._signs.ask(self._base)
        if heard != self._heard or lives:
            self.expire()
        else:
            super().expire()
