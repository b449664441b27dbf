"""A status that somebody else wrote is read as far as it can be, and never stands in the way."""

import pytest

from mamba_operator.objects.recorded_status import recorded_status, with_readable_status
from operator_objects import owner

GOOD = {"type": "Ready", "status": "True", "reason": "Serving", "lastTransitionTime": "2026-01-02T12:00:00Z"}


def test_no_status_is_an_empty_one() -> None:
    assert recorded_status(owner()).conditions == []


@pytest.mark.parametrize("broken", ["text", 5, [], None])
def test_a_status_that_is_no_object_is_an_empty_one(broken: object) -> None:
    assert recorded_status({**owner(), "status": broken}).conditions == []


def test_what_can_be_read_is_kept() -> None:
    status = recorded_status(
        {
            **owner(),
            "status": {"url": "http://x", "replicas": -1, "conditions": [GOOD, {"type": "Broken"}, "x"]},
        }
    )

    assert status.url == "http://x"
    assert status.replicas == 0
    assert [one.type for one in status.conditions] == ["Ready"]


def test_fields_of_a_newer_operator_are_dropped() -> None:
    assert recorded_status({**owner(), "status": {"url": "http://x", "future": {"a": 1}}}).url == "http://x"


def test_the_rest_of_the_object_is_left_as_it_is() -> None:
    of = {**owner(), "status": {"replicas": "many"}}

    assert with_readable_status(of)["spec"] == of["spec"]
    assert with_readable_status(owner()) == owner()
