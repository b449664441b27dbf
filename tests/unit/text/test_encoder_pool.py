"""Threads for texts: who runs where, and what is left of work that nobody waits for."""

import asyncio
import threading

import pytest

from eventually import turns
from mamba_text.encoder_pool import LONG_FROM_CHARS, THREAD_FROM_CHARS, EncoderPool, GivenUp


def here(_: GivenUp) -> bool:
    return threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    ("chars", "inline"), [(0, True), (THREAD_FROM_CHARS - 1, True), (THREAD_FROM_CHARS, False)]
)
async def test_short_texts_are_done_here_and_others_in_a_thread(chars: int, inline: bool) -> None:
    assert await EncoderPool().run(chars, here) is inline


async def test_an_error_is_the_caller_s() -> None:
    def fail(_: GivenUp) -> None:
        raise ValueError("broken")

    for chars in (1, THREAD_FROM_CHARS):
        with pytest.raises(ValueError, match="broken"):
            await EncoderPool().run(chars, fail)


async def test_long_texts_that_nobody_waits_for_any_more_hold_up_nobody() -> None:
    pool, begun, free = EncoderPool(), threading.Event(), threading.Event()
    told: list[bool] = []

    def long(given_up: GivenUp) -> None:
        begun.set()
        free.wait(60)
        told.append(given_up())

    abandoned = [asyncio.create_task(pool.run(LONG_FROM_CHARS, long)) for _ in range(8)]
    await asyncio.to_thread(begun.wait, 60)
    for task in abandoned:
        task.cancel()
    await turns()
    # One is still at it; an ordinary text does not wait for it.
    assert await pool.run(THREAD_FROM_CHARS, lambda _: "done") == "done"
    free.set()
    assert await pool.run(LONG_FROM_CHARS, lambda _: "done") == "done"
    assert told == [True]
