"""However a roll-out goes, it ends, takes nothing back that serves, and names what is the matter."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_fleet import RolloutFleet


@st.composite
def fleets(draw: st.DrawFn) -> RolloutFleet:
    """Draw a fleet that serves, with room for one more, for none, or for fewer than it wants."""
    replicas = draw(st.integers(1, 4) | st.integers(5, 12) | st.integers(13, 50))
    each = draw(st.sampled_from([1, 2, 8]))
    room = max(replicas + draw(st.integers(-2, 2)), 1)
    nodes = [each] * (room // each) + ([room % each] if room % each else [])
    broken = draw(st.none() | st.integers(0, len(nodes) - 1))
    # Nodes whose volumes do not come: none, or all but a few.
    swift = draw(st.none() | st.frozensets(st.integers(0, len(nodes) - 1), min_size=1, max_size=3))
    slow = frozenset() if swift is None else frozenset(range(len(nodes))) - swift
    surge = draw(st.integers(0, 3))
    rollout: dict[str, Any] = {
        "maxSurge": surge, "maxUnavailable": draw(st.integers(0 if surge else 1, 2)),
    }  # fmt: skip
    quota = draw(st.none() | st.integers(-1, 1))
    return RolloutFleet(
        replicas, nodes, broken=frozenset(() if broken is None else (broken,)), slow=slow,
        quota=None if quota is None else max(replicas + quota, 1),
        **draw(st.sampled_from([{}, {}, {"bad": True}, {"failing_requests": True}])), **rollout,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=8)
@given(fleets(), st.sampled_from([0, 0, 1, 3]), st.none() | st.integers(0, 60))
def test_every_roll_out_ends_takes_nothing_back_that_serves_and_says_why(
    fleet: RolloutFleet, more: int, node_goes_after: int | None
) -> None:
    assert fleet.serving, "the fleet serves to begin with"
    before = fleet.serving
    fleet.change(replicas=fleet.replicas + more)
    allowed = max(fleet.max_unavailable, 1)
    for number in range(200 + 12 * fleet.replicas):
        fleet.step()
        if number == node_goes_after:
            before -= fleet.lose_node(0)
        if number > 1 and fleet.settled:
            break
        if not fleet.failing_requests:
            assert fleet.serving >= before - allowed, "one engine at a time is missing"
    else:
        raise AssertionError(f"it does not end: {fleet.conditions}")

    for serving, started, reason in fleet.taken_back_while:
        failed = reason == "EngineCrashing" and serving * 2 <= started
        assert reason == "ErrorRateRose" or failed or not serving, "what serves is no failure"
    said = fleet.conditions
    if fleet.taken_back_while:
        assert {said[kind][1] for kind in ("UpToDate", "Progressing")} == {"RolledBack"}
        assert said["Stalled"][0] == "True"
        assert fleet.taken_back_while[-1][2] in said["UpToDate"][2]
        assert said["Degraded"][0] == "True"
    elif fleet.old:
        assert said["UpToDate"][:2] == ("False", "ProgressDeadlineExceeded")
        assert said["Degraded"][0] == "True"
    elif said["UpToDate"][0] != "True":
        assert said["Degraded"][1] in ("Unschedulable", "PodsRefused", "EngineCrashing")
    if not (fleet.bad or fleet.failing_requests or fleet.broken or fleet.slow or node_goes_after is not None):
        assert not fleet.taken_back_while
        assert not fleet.old, "what serves nowhere worse is rolled out, however little room there is"
