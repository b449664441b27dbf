"""How many engines are wanted: who decides in which mode, within which bounds, and what a wake does."""

from datetime import timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.record import readable
from mamba_operator.scale import asleep_in, engines_wanted
from operator_objects import NOW, owner


def deployment(*, wake: str | None = None, desired: int | None = None, **spec: Any) -> MambaDeployment:
    of = owner(metadata={"annotations": {names.ANNOTATION_WAKE: wake}} if wake else None, **spec)
    if desired is not None:
        of["status"] = {"scaling": {"desired": desired}}
    return MambaDeployment.model_validate(readable(of), by_alias=True, by_name=False)


RECENT = (NOW - timedelta(seconds=100)).isoformat()
LONG_AGO = (NOW - timedelta(seconds=400)).isoformat()
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
    ("a wake does not shrink", deployment(scaling=IDLE, desired=3, wake=RECENT), 3),
]


@pytest.mark.parametrize(("given", "wanted"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_wanted(given: MambaDeployment, wanted: int) -> None:
    assert engines_wanted(given, NOW) == wanted


def test_the_end_of_a_wake_is_known_so_that_it_is_looked_at_again() -> None:
    assert asleep_in(deployment(wake=RECENT), NOW) == pytest.approx(200)
    assert asleep_in(deployment(wake=LONG_AGO), NOW) is None
    assert asleep_in(deployment(), NOW) is None
