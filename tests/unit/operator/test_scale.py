"""How many engines are wanted: who decides in which mode, within which bounds, and what a wake does."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.record import readable
from mamba_operator.scale import asleep_in, engines_wanted
from operator_objects import NOW, owner


def deployment(*, wake: str | None = None, desired: int | None = None, **spec: Any) -> MambaDeployment:
    of = owner(metadata={"annotations": {names.ANNOTATION_WAKE: wake}} if wake is not None else None, **spec)
    if desired is not None:
        of["status"] = {"scaling": {"desired": desired}}
    return MambaDeployment.model_validate(readable(of), by_alias=True, by_name=False)


RECENT = (NOW - timedelta(seconds=100)).isoformat()
LONG_AGO = (NOW - timedelta(seconds=400)).isoformat()
AHEAD = (NOW + timedelta(seconds=30)).isoformat()
INTERNAL = {"minReplicas": 2, "maxReplicas": 5}
IDLE = {"minReplicas": 0, "maxReplicas": 5}

TABLE: list[tuple[str, MambaDeployment, int]] = [
    ("the minimum without a decision", deployment(scaling=INTERNAL), 2),
    ("the decision", deployment(scaling=INTERNAL, desired=4), 4),
    ("a decision above the maximum", deployment(scaling=INTERNAL, desired=9), 5),
    ("a decision below the minimum", deployment(scaling=INTERNAL, desired=0), 2),
    ("spec.replicas is ignored in internal mode", deployment(scaling=INTERNAL, replicas=7), 2),
    ("external takes spec.replicas", deployment(scaling={"mode": "External"}, replicas=7), 7),
    ("external ignores decisions", deployment(scaling={"mode": "External"}, replicas=3, desired=9), 3),
    ("external at zero sleeps", deployment(scaling={"mode": "External"}, replicas=0), 0),
    ("asleep", deployment(scaling=IDLE), 0),
    ("woken", deployment(scaling=IDLE, wake=RECENT), 1),
    ("woken while the autoscaler still says zero", deployment(scaling=IDLE, desired=0, wake=RECENT), 1),
    ("woken long ago", deployment(scaling=IDLE, wake=LONG_AGO), 0),
    ("woken by nonsense", deployment(scaling=IDLE, wake="now, please"), 0),
    ("woken without a time zone", deployment(scaling=IDLE, wake="2026-01-02T11:59:00"), 1),
    ("external woken", deployment(scaling={"mode": "External"}, replicas=0, wake=RECENT), 1),
    ("woken by a clock that is ahead", deployment(scaling=IDLE, wake=AHEAD), 1),
    ("woken in the last year there is", deployment(scaling=IDLE, wake="9999-12-31T23:59:59Z"), 1),
    ("woken in the first year there is", deployment(scaling=IDLE, wake="0001-01-01T00:00:00+14:00"), 0),
    ("woken for longer than time lasts",
     deployment(scaling={**IDLE, "scaleDownDelay": "9" * 30 + "h"}, wake=RECENT), 1),
    ("woken for no time", deployment(scaling={**IDLE, "scaleDownDelay": "0s"}, wake=RECENT), 0),
    ("woken by an empty text", deployment(scaling=IDLE, wake=""), 0),
    ("woken by a day", deployment(scaling={**IDLE, "scaleDownDelay": "24h"}, wake="2026-01-02"), 1),
    ("a wake of one that never sleeps", deployment(scaling=INTERNAL, wake=RECENT), 2),
    ("a wake does not shrink", deployment(scaling=IDLE, desired=3, wake=RECENT), 3),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_wanted(given: MambaDeployment, wanted: int) -> None:
    assert engines_wanted(given, NOW) == wanted


def test_the_end_of_a_wake_is_known_so_that_it_is_looked_at_again() -> None:
    assert asleep_in(deployment(wake=RECENT), NOW) == pytest.approx(200)
    assert asleep_in(deployment(wake=LONG_AGO), NOW) is None
    assert asleep_in(deployment(), NOW) is None


@pytest.mark.parametrize("zone", ["Z", "+00:00", "-11:59", "+14:00"])
def test_a_wake_means_the_same_moment_in_every_zone(zone: str) -> None:
    moment = datetime.fromisoformat(f"2026-01-02T12:00:00{zone}")

    left = asleep_in(deployment(wake=moment.isoformat()), moment + timedelta(seconds=299))

    assert left == pytest.approx(1)


def test_a_wake_ends_at_its_last_second_and_not_after() -> None:
    of = deployment(scaling=IDLE, wake=NOW.isoformat())

    assert engines_wanted(of, NOW + timedelta(seconds=299)) == 1
    assert engines_wanted(of, NOW + timedelta(seconds=300)) == 0
