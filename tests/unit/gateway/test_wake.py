"""Waking a deployment: once per held crowd, again if it is still wanted, and never given up."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from api_script import Answer, ApiScript
from mamba_api import names
from mamba_gateway.operator_note import Waker
from mamba_kube.errors import ApiError
from virtual_time import in_virtual_time

AT = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


def waker(script: ApiScript) -> Waker:
    return Waker(script, "models", "nano", lambda: AT, every=15.0)


async def working(script: ApiScript, story: Callable[[Waker], Coroutine[Any, Any, None]]) -> list[float]:
    """Return the time of each request during the story."""
    made = waker(script)
    work = asyncio.create_task(made.work())
    await story(made)
    assert not work.done()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return script.times


@in_virtual_time
async def test_nothing_is_written_before_somebody_wants_an_engine() -> None:
    async def story(_made: Waker) -> None:
        await asyncio.sleep(100)

    assert await working(ApiScript(), story) == []


@in_virtual_time
async def test_a_crowd_writes_once_and_one_that_stays_writes_again_later() -> None:
    async def story(made: Waker) -> None:
        for _ in range(40):
            made.request()
            await asyncio.sleep(1)
        await asyncio.sleep(100)

    script = ApiScript(*(Answer(200, b"{}") for _ in range(9)))
    assert await working(script, story) == [0, 15, 30, 45]


@pytest.mark.parametrize(
    "failure", [OSError("refused"), TimeoutError(), Answer(404, b"{}"), Answer(403, b"x")], ids=range(4)
)
def test_a_write_that_fails_does_not_keep_the_next_request_from_waking(failure: Answer | Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        async def story(made: Waker) -> None:
            made.request()
            await asyncio.sleep(5)
            made.request()
            await asyncio.sleep(60)

        script = ApiScript(failure, Answer(200, b"{}"))
        assert await working(script, story) == [0, 15]

    run()


async def test_only_the_deployment_s_own_wake_request_is_written_with_the_time() -> None:
    script = ApiScript(Answer(200, b"{}"))
    await waker(script).wake()
    [asked] = script.requests
    assert (asked["method"], asked["content_type"]) == ("PATCH", "application/merge-patch+json")
    assert asked["path"] == "/api/v1/namespaces/models/configmaps/nano-wake"
    assert asked["body"] == {"data": {names.WAKE_KEY: "2026-01-02T03:04:05+00:00"}}
    assert script.given[0].closed


async def test_a_refusal_is_raised_with_the_server_s_words_and_the_answer_closed() -> None:
    script = ApiScript(Answer(403, b'{"message": "no rights"}'))
    with pytest.raises(ApiError, match="no rights") as caught:
        await waker(script).wake()
    assert caught.value.status == 403
    assert script.given[0].closed
