"""Number of engines wanted: from spec.replicas, from the autoscaler's decision, and after a wake."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment, ScalingStatus
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import Demand
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.autoscale.scaling_status import (
    advisory_config,
    autoscaler_config,
    scaling_status,
    wake_text,
    woken_at,
)
from mamba_operator.objects.manifest import Manifest
from mamba_operator.objects.recorded_status import with_readable_status
from operator_objects import NOW, owner
from scaled_fleet import LOOK, Fleet

Given = tuple[MambaDeployment, str | None]


def deployment(*, wake: Any = None, **spec: Any) -> Given:
    of = MambaDeployment.model_validate(with_readable_status(owner(**spec)), by_alias=True, by_name=False)
    return of, wake_text({"kind": "ConfigMap", "data": {names.WAKE_KEY: wake}} if wake is not None else None)


def engine(replicas: int) -> Manifest:
    return {"kind": "Deployment", "spec": {"replicas": replicas}}


def wanted(given: Given, old: ScalingStatus | None = None, **more: Any) -> int:
    """Return the number of engines that shall run."""
    made = status(given, old, **more)
    return given[0].spec.replicas if made is None else made.desired


def status(
    given: Given, old: ScalingStatus | None = None, *, running: int | None = None,
    latest_decision: LatestDecision | None = None, now: datetime = NOW,
) -> ScalingStatus | None:  # fmt: skip
    of, wake = given
    return scaling_status(of, old, None if running is None else engine(running), wake, latest_decision, now)


def decision(target: int, *, asked: int, start: int = 1) -> LatestDecision:
    made = ScalingDecision(
        target=target, reason="because", binding="slots", demand=Demand(), memory=AutoscalerMemory()
    )
    return LatestDecision(asked, start, made, "a record")


RECENT = (NOW - timedelta(seconds=100)).isoformat()
LONG_AGO = (NOW - timedelta(seconds=400)).isoformat()
AHEAD = (NOW + timedelta(seconds=30)).isoformat()
FIXED = {"minReplicas": 2}
RANGE = {"minReplicas": 2, "maxReplicas": 5}
IDLE = {"minReplicas": 0, "maxReplicas": 5}
TOGETHER = {"minReplicas": 0}
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
    ("woken to what the spec says", deployment(scaling=TOGETHER, replicas=3, wake=RECENT), 3),
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


@pytest.mark.parametrize(("given", "engines"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_wanted(given: Given, engines: int) -> None:
    assert wanted(given) == engines


@pytest.mark.parametrize(
    ("given", "engines"),
    [
        (deployment(scaling=RANGE, replicas=4), 4),
        (deployment(scaling=RANGE), 2),
        (deployment(scaling=IDLE, replicas=3, wake=RECENT), 3),
    ],
)
def test_the_operator_starts_from_what_the_spec_says_within_the_bounds(given: Given, engines: int) -> None:
    assert wanted(given) == engines


def test_what_runs_goes_on_when_nothing_was_recorded() -> None:
    assert wanted(deployment(scaling=RANGE), running=5) == 5
    assert wanted(deployment(scaling=RANGE), running=9) == 5
    assert wanted(deployment(scaling=IDLE), running=2) == 2
    assert wanted(deployment(replicas=0), running=3) == 0


def old(desired: int, **more: Any) -> ScalingStatus:
    return ScalingStatus(**{"desired": desired, "start": 1, **more})


def test_a_decision_is_carried_out_once_and_told_with_its_record() -> None:
    given = deployment(scaling=RANGE)

    made = status(given, old(2), latest_decision=decision(4, asked=2))

    assert made is not None
    assert (made.desired, made.reason, made.binding) == (4, "because", "slots")
    assert made.last_change == NOW.isoformat(timespec="seconds")
    assert [(one.before, one.after, one.record) for one in made.history] == [(2, 4, "a record")]
    assert status(given, made, latest_decision=decision(4, asked=2), now=NOW + timedelta(seconds=5)) == made


def test_a_decision_about_another_number_is_left_out() -> None:
    assert wanted(deployment(scaling=RANGE), old(3), latest_decision=decision(2, asked=5)) == 3
    assert wanted(deployment(scaling=RANGE), old(3), latest_decision=decision(2, asked=3, start=4)) == 3


def test_the_bounds_hold_whatever_was_decided() -> None:
    assert wanted(deployment(scaling=RANGE), old(3), latest_decision=decision(50, asked=3)) == 5
    assert wanted(deployment(scaling=RANGE), old(9)) == 5
    assert wanted(deployment(scaling=RANGE), old(0)) == 2


def test_another_number_in_the_spec_is_where_it_starts_anew() -> None:
    made = status(
        deployment(scaling=RANGE, replicas=5), old(2, start=1), latest_decision=decision(3, asked=2)
    )

    assert made is not None
    assert (made.desired, made.start, made.binding) == (5, 5, "spec")


def test_a_wake_starts_engines_once_and_is_answered_when_they_stop() -> None:
    given = deployment(scaling=IDLE, wake=RECENT)
    awake = status(given, old(0, answered_wake=LONG_AGO))
    assert awake is not None
    assert (awake.desired, awake.binding) == (1, "wake")

    asleep = status(given, awake, latest_decision=decision(0, asked=1))
    assert asleep is not None
    assert (asleep.desired, asleep.answered_wake) == (0, RECENT)
    assert wanted(given, asleep) == 0
    assert wanted(deployment(scaling=IDLE, wake=AHEAD), asleep) == 1


@pytest.mark.parametrize("age", [0, 299, 301, 10**6])
def test_time_alone_never_stops_an_engine(age: int) -> None:
    later = NOW + timedelta(seconds=age)

    assert wanted(deployment(scaling=IDLE, wake=RECENT), old(1), now=later) == 1
    assert wanted(deployment(replicas=0, wake=RECENT), old(1, start=0), now=later) == 1


def test_engines_without_a_range_start_and_stop_together() -> None:
    config = autoscaler_config(deployment(scaling=TOGETHER, replicas=3)[0])

    assert config is not None
    assert (config.min_replicas, config.lowest, config.max_replicas) == (0, 3, 3)


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    made: ScalingStatus | None = old(2)
    for number in range(20):
        assert made is not None
        made = status(
            deployment(scaling=RANGE), made, latest_decision=decision(3 + number % 2, asked=made.desired)
        )

    assert made is not None
    assert len(made.history) == 8
    assert made.history[-1].after == made.desired


def test_what_somebody_else_decides_has_no_status() -> None:
    assert status(deployment(scaling={**EXTERNAL, **RANGE}, replicas=2), old(4)) is None
    assert status(deployment(replicas=2), old(4)) is None


@pytest.mark.parametrize("zone", ["Z", "+00:00", "-11:59", "+14:00"])
def test_a_wake_means_the_same_moment_in_every_zone(zone: str) -> None:
    moment = datetime.fromisoformat(f"2026-01-02T12:00:00{zone}")
    given = deployment(scaling=IDLE, wake=moment.isoformat())

    assert wanted(given, now=moment + timedelta(seconds=299)) == 1
    assert wanted(given, now=moment + timedelta(seconds=300)) == 0


@pytest.mark.parametrize("data", [None, "now", [NOW.isoformat()], {}, {"other": NOW.isoformat()}])
def test_a_wake_request_without_a_time_wakes_nothing(data: Any) -> None:
    assert woken_at({"kind": "ConfigMap", "data": data}) is None


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [
        ({"scaling": EXTERNAL}, (1, 10_000)),
        ({"scaling": {**EXTERNAL, **RANGE}, "replicas": 3}, (2, 5)),
        ({"scaling": {**EXTERNAL, "minReplicas": 0}, "replicas": 2}, (0, 10_000)),
        # It stops and starts with requests, as everywhere.
        ({"scaling": EXTERNAL, "replicas": 0}, None),
        ({"scaling": RANGE, "replicas": 3}, None),
        ({"replicas": 3}, None),
    ],
)
def test_numbers_are_made_for_others_within_the_bounds_of_the_object(
    spec: dict[str, Any], bounds: tuple[int, int] | None
) -> None:
    given, _ = deployment(**spec)
    config = advisory_config(given)
    assert (config and (config.min_replicas, config.max_replicas)) == bounds
    assert config is None or autoscaler_config(given) is None


@pytest.mark.parametrize(("delay", "left"), [("20s", 1), ("300s", 4)])
def test_a_shorter_delay_forgets_a_burst_sooner(delay: str, left: int) -> None:
    given, _ = deployment(scaling={"minReplicas": 1, "maxReplicas": 8, "scaleDownDelay": delay})
    config = autoscaler_config(given)
    assert config is not None
    fleet = Fleet(config, start=20.0)
    # One engine does 5 requests a second.
    grown = fleet.run([20.0] * 12)[-1]

    half_an_hour_later = fleet.run([1.0] * round(1800 / LOOK))[-1]

    assert grown >= 4
    assert min(half_an_hour_later, 4) == left


def test_without_a_delay_a_fleet_shrinks_at_once() -> None:
    given, _ = deployment(scaling={"minReplicas": 1, "maxReplicas": 8, "scaleDownDelay": "0s"})
    config = autoscaler_config(given)
    assert config is not None
    fleet = Fleet(config, start=20.0)
    fleet.run([20.0] * 12)

    assert fleet.run([1.0] * 60)[-1] == 1
