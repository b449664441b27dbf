"""A watch is stale when lists keep showing what it never delivers, and only then."""

import pytest

from mamba_operator.process.freshness import Freshness

ONE = ("services", "uid-1")


@pytest.fixture
def freshness() -> Freshness:
    return Freshness(stale_after=90)


def test_a_quiet_cluster_is_not_stale(freshness: Freshness) -> None:
    freshness.delivered(ONE, "5", 0)

    for moment in range(0, 10_000, 300):
        freshness.listed(ONE, "5", moment)

    assert freshness.stale() == []


def test_an_object_that_only_lists_know_of_is_proof_of_a_stale_watch(freshness: Freshness) -> None:
    freshness.listed(ONE, "5", 0)
    assert freshness.stale() == []

    freshness.listed(ONE, "5", 100)

    assert freshness.stale() == [ONE]


def test_a_new_version_that_never_arrives_is_proof_too(freshness: Freshness) -> None:
    freshness.delivered(ONE, "5", 0)
    freshness.listed(ONE, "6", 10)
    freshness.listed(ONE, "7", 200)

    assert freshness.stale() == [ONE]


def test_a_late_delivery_makes_it_fresh_again(freshness: Freshness) -> None:
    freshness.listed(ONE, "5", 0)
    freshness.delivered(ONE, "5", 50)
    freshness.listed(ONE, "5", 300)

    assert freshness.stale() == []


def test_an_event_newer_than_the_list_counts_although_its_version_differs(freshness: Freshness) -> None:
    freshness.delivered(ONE, "8", 11)
    freshness.listed(ONE, "7", 10)
    freshness.listed(ONE, "8", 500)

    assert freshness.stale() == []


def test_an_object_that_vanished_undelivered_is_not_held_against_the_watch(freshness: Freshness) -> None:
    freshness.listed(ONE, "5", 0)

    freshness.listed(("services", "another"), "9", 5000)

    assert freshness.stale() == []


def test_a_deleted_object_is_forgotten(freshness: Freshness) -> None:
    freshness.listed(ONE, "5", 0)
    freshness.listed(ONE, "5", 200)
    freshness.gone(ONE)

    assert freshness.stale() == []
