"""Reports of gateways about the prefix index's Redis, from the ConfigMap to the plan."""

from datetime import timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.objects.manifest import Manifest
from mamba_operator.plan import MAX_REPORT_CHARS, REPORT_SECONDS, index_trouble
from operator_objects import NOW, applied, fitting_owner, planned

OF = fitting_owner(prefixIndex={"redis": {"url": "redis://redis:6379"}})
SAYS = f"{(NOW - timedelta(seconds=30)).isoformat()} a gateway cannot use Redis: refused"


def deployment(of: Manifest) -> MambaDeployment:
    found = planned(of, []).deployment
    assert found is not None
    return found


def report(text: Any) -> Manifest:
    return {"data": {names.INDEX_TROUBLE_KEY: text}}


def test_a_fresh_report_is_shown_with_what_to_check_and_looked_at_again_when_it_is_old() -> None:
    found = index_trouble(deployment(OF), report(SAYS), NOW)
    assert found is not None
    assert "refused" in found.message
    assert "spec.prefixIndex.redis" in found.message
    assert found.seconds_left == REPORT_SECONDS - 30
    children = applied(OF)
    next(one for one in children if one["metadata"]["name"] == "nano-wake")["data"] = report(SAYS)["data"]
    plan = planned(OF, children)
    assert plan.index_trouble == found
    assert plan.requeue_after == found.seconds_left


@pytest.mark.parametrize(
    "given",
    [
        None, {}, {"data": None}, report(None), report(7), report(""), report("Redis is away"),
        report("2026-01-02"), report(f"{NOW.isoformat()}"), report(f"{NOW.isoformat()} \n\t"),
        report(f"{(NOW - timedelta(seconds=REPORT_SECONDS)).isoformat()} old"),
        report(f"{(NOW + timedelta(seconds=REPORT_SECONDS)).isoformat()} from the future"),
    ],
)  # fmt: skip
def test_what_is_old_or_no_report_says_nothing(given: Manifest | None) -> None:
    assert index_trouble(deployment(OF), given, NOW) is None


def test_without_a_redis_in_the_spec_nothing_can_be_missing() -> None:
    assert index_trouble(deployment(fitting_owner()), report(SAYS), NOW) is None
    assert index_trouble(None, report(SAYS), NOW) is None


def test_of_a_gateway_s_words_one_line_of_bounded_length_is_shown() -> None:
    found = index_trouble(deployment(OF), report(f"{NOW.isoformat()} a\nb\x1b[31m{'x' * 10_000}"), NOW)
    assert found is not None
    assert found.message.isprintable()
    assert len(found.message) < MAX_REPORT_CHARS + 100
