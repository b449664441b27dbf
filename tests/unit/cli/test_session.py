"""The loop of local mode beside its timers."""

import asyncio

import pytest
from rich.console import Console

from eventually import turns
from mamba_cli.local.session import LocalSession, SessionOptions
from mamba_cli.local.supervisor import Child, SupervisorState, Tick


def session(*, until: float) -> LocalSession:
    """Return a session whose child waits for its next start."""
    made = LocalSession([], SessionOptions(), Console(quiet=True))
    made._state = SupervisorState((Child("engine", 0, phase="waiting", until=until),))
    return made


@pytest.mark.parametrize("turns_later", range(4))
async def test_who_is_cancelled_as_an_event_comes_is_cancelled(turns_later: int) -> None:
    made = session(until=now() + 3600)
    waiting = asyncio.create_task(made._next_event())
    await asyncio.sleep(0)
    made._events.put_nowait(Tick(1.0))
    await turns(turns_later)
    if waiting.cancel():  # else it had ended
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_timer_that_is_due_is_an_event_and_one_that_came_before_it_is_taken_first() -> None:
    made = session(until=0.0)
    assert isinstance(await made._next_event(), Tick)
    made = session(until=now() + 3600)
    made._events.put_nowait(Tick(1.0))
    assert await made._next_event() == Tick(1.0)


def now() -> float:
    return asyncio.get_running_loop().time()
