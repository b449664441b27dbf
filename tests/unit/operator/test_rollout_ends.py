"""Ends of roll-outs that cannot succeed: without room, within a quota, on one broken node."""

from typing import Any

from rollout_fleet import RolloutFleet


def ended(fleet: RolloutFleet, *, replicas: int | None = None) -> int:
    """Finish a roll-out of the image `NEW` and return the fewest engines that served meanwhile."""
    fleet.change(replicas=replicas)
    least = fleet.serving
    for number in range(300):
        fleet.step()
        least = min(least, fleet.serving)
        if number > 1 and fleet.settled:
            return least
    raise AssertionError(fleet.conditions)


def test_a_fleet_that_wants_one_more_than_there_is_room_for_is_changed_one_by_one() -> None:
    fleet = RolloutFleet(3, [3])
    assert ended(fleet, replicas=4) == 2
    assert not fleet.old
    assert fleet.serving == 3
    assert fleet.conditions["Degraded"][1] == "Unschedulable"
    assert fleet.conditions["Stalled"][0] == "False"


def test_within_a_quota_without_spare_an_old_engine_goes_first() -> None:
    one, four = RolloutFleet(1, [3], quota=1), RolloutFleet(4, [8], quota=4)
    assert (ended(one), ended(four)) == (0, 3)
    assert not one.old + four.old
    assert (one.serving, four.serving) == (1, 4)


def test_a_quota_that_keeps_a_roll_out_from_beginning_is_named_in_the_end() -> None:
    fleet = RolloutFleet(1, [3], quota=1, inPlaceAfter="1h")
    assert ended(fleet) == 1
    assert fleet.conditions["UpToDate"][1] == "RolledBack"
    assert "exceeded quota" in fleet.conditions["UpToDate"][2]
    assert "maxUnavailable 1" in fleet.conditions["UpToDate"][2]


def test_one_broken_node_takes_nothing_back_and_is_named() -> None:
    fleet = RolloutFleet(4, [2, 2, 2], broken=frozenset({2}))
    assert ended(fleet) == 4
    assert not fleet.taken_back_while
    assert "node-2" in fleet.conditions["Degraded"][2]
    assert fleet.conditions["UpToDate"][1] == "ProgressDeadlineExceeded"


def test_engines_that_are_late_on_two_nodes_take_back_none_that_serves_beside_them() -> None:
    fleet = RolloutFleet(4, [1, 1, 1, 1, 1, 1], slow=frozenset({0, 1, 2, 3, 5}), maxSurge=2, maxUnavailable=1)
    ended(fleet)
    new = [pod.ready for pod in fleet.new]
    assert 0 < sum(new) < len(new) / 2, "most are late, and some serve"
    assert not fleet.taken_back_while
    assert fleet.conditions["UpToDate"][1] == "ProgressDeadlineExceeded"


def test_a_revision_that_starts_nowhere_is_taken_back_where_there_is_no_room_and_all_serve_again() -> None:
    fleet = RolloutFleet(4, [4], bad=True)
    assert ended(fleet, replicas=5) == 3
    for _ in range(20):
        fleet.step()
    assert fleet.serving == 4
    said: dict[str, Any] = fleet.conditions
    assert {said[kind][1] for kind in ("UpToDate", "Progressing", "Stalled")} == {"RolledBack"}
    assert "EngineCrashing" in said["UpToDate"][2]
    assert said["Degraded"][1] == "Unschedulable", "one more is wanted than there is room for"
    assert "RolledBack" in said["Degraded"][2]
