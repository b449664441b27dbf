"""The pool keeps what is known of each engine, and tells who waits."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target

A, B = Target("http://a", "a"), Target("http://b", "b")
WELL = ProbeReport(ready=True, models=({"id": "m"},), running=2)


def test_targets_come_and_go_and_keep_their_counts() -> None:
    pool = Pool()
    assert not pool.synced
    assert pool.set_targets([A]) == ({"http://a"}, set())
    pool.begin(A.url)
    assert pool.set_targets([A, B]) == ({"http://b"}, set())
    assert [end.in_flight for end in pool.snapshot()] == [1, 0]
    assert pool.set_targets([B]) == (set(), {"http://a"})
    assert [end.name for end in pool.snapshot()] == ["b"]


def test_the_pool_is_synced_when_every_target_was_looked_at_once_and_stays_so() -> None:
    pool = Pool()
    pool.set_targets([A, B])
    pool.report(A.url, WELL)
    assert not pool.synced
    pool.report(B.url, ProbeReport(ready=False, reason="loading"))
    assert pool.synced
    pool.set_targets([A, B, Target("http://c")])
    assert pool.synced


def test_a_pool_without_targets_is_synced_as_soon_as_that_is_known() -> None:
    pool = Pool()
    assert not pool.synced
    pool.set_targets([])
    assert pool.synced


def test_a_new_target_is_not_ready_before_its_first_report() -> None:
    pool = Pool()
    pool.set_targets([A])
    assert not pool.snapshot()[0].ready
    assert pool.reasons() == {"a": "not probed yet"}
    pool.report(A.url, WELL)
    assert pool.snapshot()[0].ready
    assert pool.reasons() == {}


def test_reports_and_ends_of_removed_targets_change_nothing() -> None:
    pool = Pool()
    pool.set_targets([A])
    gone = pool.begin(A.url)
    pool.set_targets([])
    pool.report(A.url, WELL)
    pool.response_started(A.url, gone)
    pool.end(A.url, gone)
    pool.suspect(A.url, "x")
    assert pool.snapshot() == ()
    pool.set_targets([A])
    pool.begin(A.url)
    pool.end(A.url, gone)
    assert pool.snapshot()[0].in_flight == 1


def test_a_suspect_is_not_chosen_before_the_next_good_report() -> None:
    pool = Pool()
    pool.set_targets([A])
    pool.report(A.url, WELL)
    pool.suspect(A.url, "connection refused")
    assert not pool.snapshot()[0].ready
    assert pool.reasons() == {"a": "connection refused"}
    pool.report(A.url, WELL)
    assert pool.snapshot()[0].ready


def test_the_source_s_opinion_and_the_engine_s_own_must_both_be_good() -> None:
    pool = Pool()
    pool.set_targets([Target("http://a", "a", ready=False), Target("http://b", "b", draining=True)])
    for url in ("http://a", "http://b"):
        pool.report(url, WELL)
    assert [end.ready for end in pool.snapshot()] == [False, True]
    assert [end.draining for end in pool.snapshot()] == [False, True]


def test_models_are_remembered_while_an_engine_is_away() -> None:
    pool = Pool()
    pool.set_targets([A])
    pool.report(A.url, WELL)
    pool.report(A.url, ProbeReport(ready=False, reason="loading"))
    assert pool.snapshot()[0].models == frozenset({"m"})
    assert pool.model_entries() == ({"id": "m"},)


def test_what_was_ours_at_the_report_is_not_counted_twice() -> None:
    pool = Pool()
    pool.set_targets([A])
    tickets = [pool.begin(A.url), pool.begin(A.url)]
    pool.report(A.url, WELL)
    assert pool.snapshot()[0].load == 2
    tickets.append(pool.begin(A.url))
    assert pool.snapshot()[0].load == 3
    for ticket in (*tickets, *tickets):
        pool.end(A.url, ticket)
    assert pool.snapshot()[0].load == 0


async def test_every_waiter_wakes_at_a_change() -> None:
    pool = Pool()
    waiting = [asyncio.create_task(pool.changed()) for _ in range(3)]
    await asyncio.sleep(0)
    pool.set_targets([A])
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await pool.changed()


def test_what_an_engine_says_of_itself_is_in_the_next_snapshot_and_so_is_what_was_sent_since() -> None:
    now = [100.0]
    pool = Pool(clock=lambda: now[0])
    pool.set_targets([A])
    pool.report(A.url, WELL)
    assert pool.snapshot()[0].queued_tokens is None
    speed = EngineSpeed(5000.0, 1e-5, 0.02)
    pool.report(A.url, replace(WELL, speed=speed, prompt_tokens_waiting=700.0, room=4096.0))
    seen = pool.snapshot()[0]
    assert (seen.speed, seen.queued_tokens, seen.room) == (speed, 700, 4096)
    ticket = pool.begin(A.url, 300.0)
    assert pool.snapshot()[0].queued_tokens == 1000
    pool.response_started(A.url, ticket)
    assert pool.snapshot()[0].queued_tokens == 700
    assert pool.snapshot()[0].in_flight == 1


def test_the_time_of_requests_is_learned_from_those_that_ended() -> None:
    now = [0.0]
    pool = Pool(clock=lambda: now[0])
    pool.set_targets([A])
    for _ in range(60):
        ticket = pool.begin(A.url)
        now[0] += 8.0
        pool.end(A.url, ticket)
    assert pool.snapshot()[0].service_seconds == pytest.approx(8, rel=0.02)


def test_a_snapshot_stays_as_it_was() -> None:
    pool = Pool()
    pool.set_targets([A])
    pool.report(A.url, WELL)
    before = pool.snapshot()
    pool.begin(A.url)
    pool.suspect(A.url, "x")
    assert (before[0].in_flight, before[0].ready) == (0, True)
    assert (pool.snapshot()[0].in_flight, pool.snapshot()[0].ready) == (1, False)
    pool.set_targets([replace(A, draining=True)])
    assert pool.snapshot()[0].draining


@given(
    st.lists(
        st.sampled_from(("begin", "answered", "badly", "end", "lost", "fault", "report", "mute", "wait"))
    )
)
def test_an_engine_that_was_looked_at_in_between_is_as_one_that_was_not(steps: list[str]) -> None:
    now = 0.0
    seen, unseen = Pool(clock=lambda: now), Pool(clock=lambda: now)
    telling = replace(
        WELL, speed=EngineSpeed(1000.0, decode_seconds=0.02), prompt_tokens_waiting=300.0, waiting=3
    )
    tickets: list[int] = []
    for pool in (seen, unseen):
        pool.set_targets([A, B])
        pool.report(A.url, telling)
    for number, step in enumerate(steps):
        now += 0.7
        for pool in (seen, unseen):
            if step == "begin":
                ticket = pool.begin(A.url, 100.0 * (number + 1))
            elif step in ("answered", "badly") and tickets:
                pool.response_started(A.url, tickets[-1], well=step == "answered")
            elif step in ("end", "lost") and tickets:
                pool.end(A.url, tickets[0], failed=step == "lost")
            elif step == "fault":
                pool.fail(A.url, "broke off")
            elif step in ("report", "mute"):
                pool.report(A.url, telling if step == "report" else replace(WELL, running=number))
        if step == "begin":
            tickets.append(ticket)
        elif step in ("end", "lost") and tickets:
            del tickets[0]
        seen.snapshot()
    assert seen.snapshot() == unseen.snapshot()
