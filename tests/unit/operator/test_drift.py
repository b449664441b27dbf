"""Drift is what we want and do not see; what others added or the API server filled in is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_operator.children.child_comparison import MAX_PATHS, drift

SAME: list[tuple[str, Any, Any]] = [
    ("equal", {"a": 1}, {"a": 1}),
    ("a default was filled in", {"a": {}}, {"a": {"b": 1}}),
    ("a field of somebody else", {"a": 1}, {"a": 1, "b": 2}),
    ("an empty object was dropped", {"a": {"b": {}}}, {"a": {}}),
    ("an empty list was dropped", {"a": []}, {}),
    ("false was dropped", {"a": False}, {}),
    ("zero was dropped", {"a": 0}, {}),
    ("an empty text was dropped", {"a": ""}, {}),
    ("list items in another order",
     {"l": [{"name": "a"}, {"name": "b"}]}, {"l": [{"name": "b"}, {"name": "a"}]}),
    ("an item of somebody else", {"l": [{"name": "a"}]}, {"l": [{"name": "z"}, {"name": "a", "x": 1}]}),
    ("a quantity in another spelling", {"limits": {"cpu": "1000m"}}, {"limits": {"cpu": "1"}}),
    ("a quantity as a number", {"requests": {"gpu": "1"}}, {"requests": {"gpu": 1}}),
    ("a size in another spelling", {"requests": {"memory": "1024Mi"}}, {"requests": {"memory": "1Gi"}}),
    ("a quantity in powers of ten", {"limits": {"memory": "129e6"}}, {"limits": {"memory": "129M"}}),
    ("a quantity in powers of ten, large E", {"limits": {"memory": "12E2"}}, {"limits": {"memory": "1200"}}),
    ("exabytes are no power of ten", {"limits": {"memory": "1E"}}, {"limits": {"memory": "1E"}}),
    ("a bare fraction", {"limits": {"cpu": 0.5}}, {"limits": {"cpu": "500m"}}),
    ("a fraction without its zero", {"limits": {"cpu": ".5"}}, {"limits": {"cpu": "500m"}}),
    ("a number that ends with its point", {"limits": {"cpu": "2."}}, {"limits": {"cpu": "2"}}),
    ("a sign", {"limits": {"cpu": "+1"}}, {"limits": {"cpu": "1"}}),
    ("a divisor", {"resourceFieldRef": {"divisor": "1024Ki"}}, {"resourceFieldRef": {"divisor": "1Mi"}}),
    ("an overhead", {"overhead": {"cpu": "0.25"}}, {"overhead": {"cpu": "250m"}}),
    ("a quantity of nothing that was dropped", {"limits": {"cpu": 0}}, {"limits": {}}),
    ("stringData becomes data", {"stringData": {"a": "b"}}, {"data": {"a": "Yg=="}}),
]  # fmt: skip


@pytest.mark.parametrize(("wanted", "seen"), [one[1:] for one in SAME], ids=[one[0] for one in SAME])
def test_is_no_drift(wanted: Any, seen: Any) -> None:
    assert drift(wanted, seen) == []


DIFFERENT: list[tuple[str, Any, Any, str]] = [
    ("another value", {"a": {"b": 1}}, {"a": {"b": 2}}, "a.b"),
    ("a missing value", {"a": {"b": 1}}, {"a": {}}, "a.b"),
    ("true where false is wanted", {"a": False}, {"a": True}, "a"),
    ("a number where a truth is wanted", {"a": True}, {"a": 1}, "a"),
    ("a missing object", {"a": {"b": 1}}, {}, "a"),
    ("a text where an object is wanted", {"a": {"b": 1}}, {"a": "x"}, "a"),
    ("a text where an empty object is wanted", {"a": {}}, {"a": "x"}, "a"),
    ("a key more in a selector", {"s": {"selector": {"a": "b"}}}, {"s": {"selector": {"a": "b", "c": "d"}}},
     "s.selector"),
    ("a node more is left out", {"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "b", "c": "d"}},
     "nodeSelector"),
    ("a missing item", {"l": [{"name": "a"}, {"name": "b"}]}, {"l": [{"name": "a"}]}, "l[b]"),
    ("an edited item", {"l": [{"name": "a", "v": 1}]}, {"l": [{"name": "a", "v": 2}]}, "l[a].v"),
    ("a plain list that grew", {"args": ["x"]}, {"args": ["x", "y"]}, "args"),
    ("another item of a plain list", {"args": ["x", "y"]}, {"args": ["x", "z"]}, "args[1]"),
    ("another quantity", {"limits": {"cpu": "1"}}, {"limits": {"cpu": "2"}}, "limits.cpu"),
    ("a quantity nobody can read", {"limits": {"cpu": "1"}}, {"limits": {"cpu": "many"}}, "limits.cpu"),
    ("a truth where a quantity is wanted", {"limits": {"cpu": "1"}}, {"limits": {"cpu": True}}, "limits.cpu"),
    ("a quantity that was removed", {"limits": {"cpu": "1"}}, {"limits": {}}, "limits.cpu"),
    ("powers of ten that differ", {"limits": {"cpu": "1e3"}}, {"limits": {"cpu": "1e2"}}, "limits.cpu"),
    ("thousand and exa", {"limits": {"cpu": "1E3"}}, {"limits": {"cpu": "1E"}}, "limits.cpu"),
    ("numbers that only look like quantities", {"data": {"a": "1000m"}}, {"data": {"a": "1"}}, "data.a"),
    ("the same port of another protocol",
     {"ports": [{"port": 1, "protocol": "TCP"}]}, {"ports": [{"port": 1, "protocol": "UDP"}]}, "ports[1]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "seen", "path"), [one[1:] for one in DIFFERENT], ids=[one[0] for one in DIFFERENT]
)
def test_is_drift_at_that_path(wanted: Any, seen: Any, path: str) -> None:
    assert drift(wanted, seen) == [path]


def test_only_the_first_few_paths_are_named() -> None:
    wanted = {str(number): 1 for number in range(20)}

    assert len(drift(wanted, {})) == MAX_PATHS


def test_identity_and_kind_of_the_object_itself_do_not_count() -> None:
    assert drift({"kind": "A", "apiVersion": "v1"}, {"kind": "B"}) == []
    assert drift({"spec": {"kind": "A"}}, {"spec": {"kind": "B"}}) == ["spec.kind"]


SPELLINGS = ["{0}", "{0}.0", "+{0}", "{0}000m", "{0}e0", "{0}E0", "{0}000e-3", "{0}000000u"]


@given(st.integers(0, 10**6), st.sampled_from(SPELLINGS), st.sampled_from(SPELLINGS), st.integers(1, 9))
def test_one_amount_in_any_two_spellings_is_the_same_and_another_amount_is_not(
    amount: int, wanted: str, seen: str, more: int
) -> None:
    desired = {"limits": {"cpu": wanted.format(amount)}}

    assert drift(desired, {"limits": {"cpu": seen.format(amount)}}) == []
    assert drift(desired, {"limits": {"cpu": seen.format(amount + more)}}) == ["limits.cpu"]
