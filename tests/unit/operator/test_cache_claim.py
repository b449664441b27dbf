"""A claim that is there and cannot be made what the spec says is used as it is, and the status says so."""

from typing import Any

import pytest

from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Manifest
from model_loads import loaded
from operator_objects import NOW, edited, fitting_owner, nano_config, planned, running, snapshot


def cached(**cache: Any) -> Manifest:
    model = {"uri": "hf://org/model", "config": nano_config(), "cache": {"size": "40Gi", **cache}}
    return fitting_owner(model=model)


def there(of: Manifest, phase: str = "Bound") -> list[Manifest]:
    def bind(claim: Manifest) -> None:
        claim["status"] = {"phase": phase}
        claim["spec"].setdefault("storageClassName", "standard")

    return edited(running(loaded(of)), "PersistentVolumeClaim", "nano-model", bind)


def claims(of: Manifest, children: list[Manifest]) -> list[Manifest]:
    made = [each.manifest for each in planned(of, children).applies]
    return [one for one in made if one["kind"] == "PersistentVolumeClaim"]


CHANGES = [
    ("another access mode", {"accessMode": "ReadWriteOnce"}, "Bound", "has access mode ReadWriteMany"),
    ("another class", {"storageClassName": "fast"}, "Bound", "has storage class standard, not fast"),
    ("a smaller size", {"size": "20Gi"}, "Bound", "has 40Gi, which cannot shrink to 20Gi"),
    ("growth before it is bound", {"size": "80Gi"}, "Pending", "can grow to 80Gi only once it is Bound"),
]


@pytest.mark.parametrize(
    ("change", "phase", "says"), [case[1:] for case in CHANGES], ids=[c[0] for c in CHANGES]
)
def test_what_a_claim_cannot_become_is_told_and_never_applied(
    change: dict[str, Any], phase: str, says: str
) -> None:
    children, of = there(cached(), phase), cached(**change)

    assert claims(of, children) == []
    seen = snapshot(of, children)
    status = summarize(seen, planned(of, children), (), now=NOW)
    assert status is not None
    found = {one.type: one for one in status.conditions}
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.CACHE_KEPT)
    assert says in found["Degraded"].message
    assert "nano-model" in found["Degraded"].message
    # What is there is used: nobody loses the endpoint for it.
    assert found["Ready"].status == "True"


def test_a_bound_claim_grows() -> None:
    [claim] = claims(cached(size="80Gi"), there(cached()))

    assert claim["spec"]["resources"]["requests"]["storage"] == "80Gi"


def test_the_same_size_in_another_spelling_is_no_change_of_what_is_kept() -> None:
    assert planned(cached(size="40960Mi"), there(cached())).cache_kept is None


def test_a_class_that_the_spec_leaves_to_the_cluster_is_no_difference() -> None:
    children = there(cached())

    assert claims(cached(), children) == []
    assert planned(cached(), children).cache_kept is None
