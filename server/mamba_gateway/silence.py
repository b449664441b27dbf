"""A look at an engine that says nothing: one that is busy says so at `/livez`, one that is wedged does not.

Around one attempt. As long as bytes come it costs a timer; nothing is asked before the silence has lasted.
"""

import asyncio
from types import TracebackType
from typing import Self

from mamba_gateway.interrupt import Interrupt
from mamba_gateway.upstream_connection import ConnectionLost, IdleTimeout, Unreachable
from mamba_gateway.upstream_connector import UpstreamConnector


class SilenceWatch:
    """Raises TimeoutError in its block, with `expired`, once the engine was silent for `seconds` and does not
    say that it lives within `patience`. Any answer below 500 is a sign of life: engines of other kinds
    have no such route."""

    def __init__(self, connector: UpstreamConnector, base: str, seconds: float, patience: float) -> None:
        self._connector, self._base, self._seconds = connector, base, seconds
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._limit = Interrupt()
        self._heard = self._loop.time()
        self._look: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expired(self) -> bool:
        """The engine was given up."""
        return self._limit.fired

    def heard(self) -> None:
        """Bytes came."""
        self._heard = self._loop.time()

    def __enter__(self) -> Self:
        self._limit.__enter__()
        self._timer = self._loop.call_later(self._seconds, self._on_time)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._look is not None:
            self._look.cancel()
        self._limit.__exit__(kind, error, trace)

    def _on_time(self) -> None:
        left = self._heard + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._on_time)
        else:
            self._look = asyncio.create_task(self._ask(self._heard))

    async def _ask(self, heard: float) -> None:
        lives = await self._lives()
        if heard != self._heard or lives:
            self.heard()
            self._timer = self._loop.call_later(self._seconds, self._on_time)
        else:
            self._limit.fire()

    async def _lives(self) -> bool:
        try:
            async with asyncio.timeout(self._patience):
                answer, _ = await self._connector.send(self._base, "GET /livez", (), b"")
        except (Unreachable, ConnectionLost, IdleTimeout, TimeoutError):
            return False
        answer.close()
        return answer.status < 500
