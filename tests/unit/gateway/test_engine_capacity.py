"""Requests admitted to engines: as many as they can run, plus one step's worth."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from mamba_gateway.endpoints.endpoint import ENGINE_QUEUE, Endpoint, engine_capacity
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target

Make = Callable[..., Endpoint]


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({"max_running": 32}, 32 + ENGINE_QUEUE),
        ({"max_running": 32, "in_flight": 30}, 2 + ENGINE_QUEUE),
        ({"max_running": 32, "running": 20, "waiting": 4, "in_flight": 30, "in_flight_at_report": 10},
         ENGINE_QUEUE - 12),
        # Prompts wait for their turn and not for memory: more will run.
        ({"max_running": 32, "running": 4, "waiting": 20, "in_flight": 24, "in_flight_at_report": 24,
          "room": 9000.0, "queued_tokens": 100.0}, 8 + ENGINE_QUEUE),
        # Memory is short: no more will run than do.
        ({"max_running": 32, "running": 4, "waiting": 20, "in_flight": 24, "in_flight_at_report": 24,
          "room": 90.0, "queued_tokens": 100.0}, -20 + ENGINE_QUEUE),
        ({}, math.inf),
    ],
)  # fmt: skip
def test_an_engine_has_places_for_what_it_can_run(
    endpoint: Make, changes: dict[str, Any], free: float
) -> None:
    assert engine_capacity([endpoint("a", **changes)], "m") == free


def test_engines_count_together_and_only_those_that_may_be_chosen(endpoint: Make) -> None:
    full, idle = endpoint("a", max_running=4, in_flight=20), endpoint("b", max_running=4)
    assert engine_capacity([full, idle], "m") == 4 + 4 + 2 * ENGINE_QUEUE - 20
    others = [
        endpoint("c", ready=False),
        endpoint("d", draining=True),
        endpoint("e", models=frozenset({"x"})),
    ]
    assert engine_capacity([full, idle, *others], "m") == engine_capacity([full, idle], "m")


def test_where_no_engine_is_nothing_waits_here(endpoint: Make) -> None:
    assert (
        engine_capacity([], "m")
        == engine_capacity([endpoint("a", ready=False, max_running=1)], "m")
        == math.inf
    )


def test_requests_of_ours_that_ended_since_the_report_was_made_are_not_taken_for_those_of_others() -> None:
    pool = Pool(clock=lambda: 0.0)
    pool.set_targets([Target("http://a", "a")])
    tickets = [pool.begin("http://a") for _ in range(16)]
    pool.report("http://a", ProbeReport(ready=True, running=16, max_running=16))
    for ticket in tickets:
        pool.end("http://a", ticket)
    # What it tells now was true before they ended together.
    pool.report("http://a", ProbeReport(ready=True, running=16, max_running=16))
    assert engine_capacity(pool.snapshot(), None) == 16 + ENGINE_QUEUE
    pool.report("http://a", ProbeReport(ready=True, running=5, max_running=16))
    assert engine_capacity(pool.snapshot(), None) == 16 + ENGINE_QUEUE - 5
