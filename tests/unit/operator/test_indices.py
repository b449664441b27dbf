"""A child that the operator made counts as being there before a watch shows it, and no longer than that."""

from typing import Any

import pytest

from mamba_operator.objects.indices import CREATED_LIFETIME, Indices, index_id
from mamba_operator.objects.kinds import INFERENCE_POOL, MAMBA_DEPLOYMENT, SERVICE, Kind
from mamba_operator.objects.manifest import Key, Manifest
from operator_objects import applied, fitting_owner

KEY = Key("models", "nano")


class Clock:
    """Seconds, as the test says."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def held() -> dict[str, dict[Key, list[Manifest]]]:
    """Return kopf's indices."""
    return {}


@pytest.fixture
def indices(clock: Clock, held: dict[str, Any]) -> Indices:
    made = Indices(clock)
    made.take(held)
    return made


def service(uid: str = "one", kind: Kind = SERVICE) -> Manifest:
    child = next(one for one in applied(fitting_owner()) if one["kind"] == "Service")
    return {**child, "kind": kind.kind, "metadata": {**child["metadata"], "uid": uid}}


def uids(found: list[Manifest]) -> list[str]:
    return [one["metadata"]["uid"] for one in found]


def test_what_was_made_is_there_before_a_watch_shows_it_and_once(
    indices: Indices, held: dict[str, Any]
) -> None:
    indices.add_created(service())
    assert uids(indices.of(SERVICE, KEY)) == ["one"]

    held[index_id(SERVICE)] = {KEY: [service()]}
    assert uids(indices.of(SERVICE, KEY)) == ["one"]


def test_an_object_with_a_child_that_no_watch_shows_is_not_childless(
    indices: Indices, held: dict[str, Any]
) -> None:
    held[index_id(MAMBA_DEPLOYMENT)] = {KEY: [fitting_owner()]}
    indices.complete = True
    assert indices.childless(KEY) is not None

    indices.add_created(service())

    assert indices.childless(KEY) is None


def test_once_a_watch_has_shown_it_what_watches_say_counts(indices: Indices, held: dict[str, Any]) -> None:
    indices.add_created(service())
    indices.confirm(KEY, service("another"))
    assert uids(indices.of(SERVICE, KEY)) == ["one"]

    indices.confirm(KEY, service())

    assert indices.of(SERVICE, KEY) == []


def test_what_a_watch_showed_before_its_maker_was_told_is_not_kept_beside_it(
    indices: Indices, held: dict[str, Any]
) -> None:
    held[index_id(SERVICE)] = {KEY: [service()]}
    indices.add_created(service())

    held.clear()

    assert indices.of(SERVICE, KEY) == []


def test_what_no_watch_ever_shows_is_not_believed_for_long(indices: Indices, clock: Clock) -> None:
    indices.add_created(service())
    clock.now = CREATED_LIFETIME - 1
    assert indices.of(SERVICE, KEY)

    clock.now = CREATED_LIFETIME + 1

    assert indices.of(SERVICE, KEY) == []


def test_what_no_watch_ever_shows_is_let_go_of_whoever_asks_for_it(indices: Indices, clock: Clock) -> None:
    indices.add_created(service("old"))
    clock.now = CREATED_LIFETIME / 2
    indices.add_created(service("young"))
    indices.expire_unconfirmed()
    assert indices.unconfirmed == 2

    clock.now = CREATED_LIFETIME + 1
    indices.expire_unconfirmed()
    assert uids(indices.of(SERVICE, KEY)) == ["young"]
    assert indices.unconfirmed == 1

    clock.now = 2 * CREATED_LIFETIME
    indices.expire_unconfirmed()
    assert indices.unconfirmed == 0


def test_a_kind_that_is_not_watched_is_not_kept(indices: Indices) -> None:
    indices.add_created(service(kind=INFERENCE_POOL))

    assert indices.of(INFERENCE_POOL, KEY) == []
