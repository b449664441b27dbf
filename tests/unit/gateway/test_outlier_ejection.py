"""Endpoints whose requests fail are left out for a growing time, never too many, and come back by one."""

import asyncio

from mamba_gateway.endpoints.endpoint import (
    FAILURES,
    FIRST_SECONDS,
    LONGEST_SECONDS,
    OutlierEjection,
)
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.relay.attempts import MIN_RETRIES, RETRY_RATIO, WINDOW_SECONDS, RetryBudget


def pool(*names: str) -> Pool:
    made = Pool(asyncio.get_running_loop().time)
    made.set_targets([Target(f"http://{name}", name) for name in names])
    well(made)
    return made


def well(made: Pool) -> None:
    """Answer all probes as healthy engines."""
    for one in made.snapshot():
        made.report(one.url, ProbeReport(ready=True))


def ready(made: Pool) -> str:
    return "".join(one.name for one in made.snapshot() if one.ready)


def fail(made: Pool, name: str, times: int = FAILURES) -> None:
    for _ in range(times):
        ticket = made.begin(f"http://{name}")
        made.suspect(f"http://{name}", "it answered 503")
        made.end(f"http://{name}", ticket)
    well(made)


async def test_an_engine_that_fails_in_a_row_is_left_out_whatever_probes_say() -> None:
    made = pool("a", "b")
    fail(made, "a", FAILURES - 1)
    assert ready(made) == "ab"
    fail(made, "a", 1)
    assert ready(made) == "b"
    assert "failed in a row" in made.reasons()["a"]
    await asyncio.sleep(FIRST_SECONDS - 0.1)
    well(made)
    assert ready(made) == "b"


async def test_an_answer_in_between_ends_the_row() -> None:
    made = pool("a", "b")
    for _ in range(5):
        fail(made, "a", FAILURES - 1)
        made.response_started("http://a", made.begin("http://a"))
    assert ready(made) == "ab"


async def test_one_request_tells_whether_it_is_well_again() -> None:
    made = pool("a", "b")
    fail(made, "a")
    await asyncio.sleep(FIRST_SECONDS)
    assert ready(made) == "ab"
    trial = made.begin("http://a")
    assert ready(made) == "b"
    made.response_started("http://a", trial)
    assert ready(made) == "ab"
    fail(made, "a", FAILURES - 1)
    assert ready(made) == "ab"


async def test_a_trial_that_nobody_saw_the_end_of_leaves_room_for_another() -> None:
    made = pool("a", "b")
    fail(made, "a")
    await asyncio.sleep(FIRST_SECONDS)
    made.end("http://a", made.begin("http://a"))
    assert ready(made) == "ab"


async def test_each_time_it_is_left_out_for_longer_up_to_a_limit() -> None:
    made = pool("a", "b")
    fail(made, "a")
    out = FIRST_SECONDS
    for _ in range(10):
        await asyncio.sleep(0.9 * out)
        assert ready(made) == "b"
        await asyncio.sleep(0.1 * out + 0.01)
        assert ready(made) == "ab"
        fail(made, "a", 1)
        out = min(LONGEST_SECONDS, 2 * out)
    assert out == LONGEST_SECONDS


async def test_no_more_than_half_are_left_out() -> None:
    made = pool(*"abcde")
    for name in "abcde":
        fail(made, name)
    assert ready(made) == "cde"
    alone = pool("a")
    fail(alone, "a", 100)
    assert ready(alone) == "a"


async def test_when_nothing_else_is_left_it_is_better_than_nothing() -> None:
    made = pool("a", "b")
    fail(made, "a")
    made.report("http://b", ProbeReport(ready=True, draining=True))
    assert "a" in ready(made)


async def test_no_more_is_sent_again_than_a_share_and_a_few() -> None:
    budget = RetryBudget(asyncio.get_running_loop().time)
    for _ in range(MIN_RETRIES):
        assert budget.available
        budget.record_retry()
    assert not budget.available
    for _ in range(100):
        budget.record_request()
    for _ in range(int(100 * RETRY_RATIO)):
        assert budget.available
        budget.record_retry()
    assert not budget.available
    await asyncio.sleep(WINDOW_SECONDS)
    assert budget.available


def test_mistakes_without_end_keep_an_engine_out_for_a_moment_and_no_longer() -> None:
    """Where another engine is slow to say the same, there is always a request that is compared."""
    engine, out = OutlierEjection(), 0
    for tenth in range(100):
        engine.compare(tenth / 10)
        out += engine.excludes(tenth / 10)
    assert 0 < out / 10 <= 2.5


def test_the_next_comparison_keeps_it_out_again() -> None:
    engine = OutlierEjection()
    engine.compare(0.0)
    assert engine.excludes(1.0)
    engine.comparisons = 0
    assert not engine.excludes(1.0)
    engine.compare(50.0)
    assert engine.excludes(51.0)
