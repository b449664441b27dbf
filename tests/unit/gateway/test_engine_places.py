"""How many requests engines are given: what they can run, and one step's worth more."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from mamba_gateway.endpoints import Endpoint
from mamba_gateway.engine_places import ENGINE_QUEUE, places

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
    assert places([endpoint("a", **changes)], "m") == free


def test_engines_count_together_and_only_those_that_may_be_chosen(endpoint: Make) -> None:
    full, idle = endpoint("a", max_running=4, in_flight=20), endpoint("b", max_running=4)
    assert places([full, idle], "m") == 4 + 4 + 2 * ENGINE_QUEUE - 20
    others = [
        endpoint("c", ready=False),
        endpoint("d", draining=True),
        endpoint("e", models=frozenset({"x"})),
    ]
    assert places([full, idle, *others], "m") == places([full, idle], "m")


def test_where_no_engine_is_nothing_waits_here(endpoint: Make) -> None:
    assert places([], "m") == places([endpoint("a", ready=False, max_running=1)], "m") == math.inf
