"""How many engines are wanted: what spec.replicas says, who sleeps, and what a wake does."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.record import readable
from mamba_operator.scale import engines_wanted, seconds_awake, woken_at
from operator_objects import NOW, owner

Given = tuple[MambaDeployment, datetime | None]


def deployment(*, wake: Any = None, **spec: Any) -> Given:
    of = MambaDeployment.model_validate(readable(owner(**spec)), by_alias=True, by_name=False)
    return of, woken_at({"kind": "ConfigMap", "data": {names.WAKE_KEY: wake}} if wake is not None else None)


RECENT = (NOW - timedelta(seconds=100)).isoformat()
LONG_AGO = (NOW - timedelta(seconds=400)).isoformat()
AHEAD = (NOW + timedelta(seconds=30)).isoformat()
FIXED = {"minReplicas": 2, "maxReplicas": 5}
IDLE = {"minReplicas": 0, "maxReplicas": 5}
EXTERNAL = {"mode": "External"}

TABLE: list[tuple[str, Given, int]] = [
    ("one unless the spec says more", deployment(), 1),
    ("what the spec says", deployment(replicas=7), 7),
    ("what the spec says, between its bounds", deployment(scaling=FIXED, replicas=4), 4),
    ("what an autoscaler says", deployment(scaling=EXTERNAL, replicas=7), 7),
    ("none, as the spec says", deployment(replicas=0), 0),
    ("none, as the spec says, and woken", deployment(replicas=0, wake=RECENT), 1),
    ("external at zero sleeps", deployment(scaling=EXTERNAL, replicas=0), 0),
    ("external above zero does not sleep by itself",
     deployment(scaling={**EXTERNAL, "minReplicas": 0}, replicas=3), 3),
    ("asleep", deployment(scaling=IDLE), 0),
    ("asleep, however many it wakes to", deployment(scaling=IDLE, replicas=3), 0),
    ("woken", deployment(scaling=IDLE, wake=RECENT), 1),
    ("woken to what the spec says", deployment(scaling=IDLE, replicas=3, wake=RECENT), 3),
    ("woken with nothing to wake to", deployment(scaling=IDLE, replicas=0, wake=RECENT), 1),
    ("woken long ago", deployment(scaling=IDLE, wake=LONG_AGO), 0),
    ("woken by nonsense", deployment(scaling=IDLE, wake="now, please"), 0),
    ("woken without a time zone", deployment(scaling=IDLE, wake="2026-01-02T11:59:00"), 1),
    ("external woken", deployment(scaling=EXTERNAL, replicas=0, wake=RECENT), 1),
    ("woken by a clock that is ahead", deployment(scaling=IDLE, wake=AHEAD), 1),
    ("woken in the last year there is", deployment(scaling=IDLE, wake="9999-12-31T23:59:59Z"), 1),
    ("woken in the first year there is", deployment(scaling=IDLE, wake="0001-01-01T00:00:00+14:00"), 0),
    ("woken for longer than time lasts",
     deployment(scaling={**IDLE, "scaleDownDelay": "9" * 30 + "h"}, wake=RECENT), 1),
    ("woken for no time", deployment(scaling={**IDLE, "scaleDownDelay": "0s"}, wake=RECENT), 0),
    ("woken by a number", deployment(scaling=IDLE, wake=5), 0),
    ("woken by an empty text", deployment(scaling=IDLE, wake=""), 0),
    ("woken by a day", deployment(scaling={**IDLE, "scaleDownDelay": "24h"}, wake="2026-01-02"), 1),
    ("a wake of one that never sleeps", deployment(scaling=FIXED, replicas=2, wake=RECENT), 2),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_wanted(given: Given, wanted: int) -> None:
    assert engines_wanted(*given, NOW) == wanted


def test_the_end_of_a_wake_is_known_so_that_it_is_looked_at_again() -> None:
    assert seconds_awake(*deployment(wake=RECENT), NOW) == pytest.approx(200)
    assert seconds_awake(*deployment(wake=LONG_AGO), NOW) is None
    assert seconds_awake(*deployment(), NOW) is None


@pytest.mark.parametrize("zone", ["Z", "+00:00", "-11:59", "+14:00"])
def test_a_wake_means_the_same_moment_in_every_zone(zone: str) -> None:
    moment = datetime.fromisoformat(f"2026-01-02T12:00:00{zone}")

    left = seconds_awake(*deployment(wake=moment.isoformat()), moment + timedelta(seconds=299))

    assert left == pytest.approx(1)


def test_a_wake_ends_at_its_last_second_and_not_after() -> None:
    of = deployment(scaling=IDLE, wake=NOW.isoformat())

    assert engines_wanted(*of, NOW + timedelta(seconds=299)) == 1
    assert engines_wanted(*of, NOW + timedelta(seconds=300)) == 0


@pytest.mark.parametrize("data", [None, "now", [NOW.isoformat()], {}, {"other": NOW.isoformat()}])
def test_a_wake_request_without_a_time_wakes_nothing(data: Any) -> None:
    assert woken_at({"kind": "ConfigMap", "data": data}) is None
