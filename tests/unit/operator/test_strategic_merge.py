"""A user's pod template is merged as Kubernetes merges it: by identity, field by field, null removes."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_operator.objects.errors import InvalidPatch
from mamba_operator.render.strategic_merge import MERGE_KEYS, merge

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "engine",
                "image": "ours",
                "args": ["serve"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 8000}],
                "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
                "resources": {"limits": {"memory": "1Gi"}},
            }
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "model", "persistentVolumeClaim": {"claimName": "m"}},
        ],
        "tolerations": [{"key": "gpu"}],
        "terminationGracePeriodSeconds": 30,
    },
}  # fmt: skip


def engine(merged: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in merged["spec"]["containers"] if one["name"] == "engine")


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": spec}


def on_engine(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "engine", **fields}])


def test_an_empty_patch_changes_nothing() -> None:
    assert merge(BASE, {}) == BASE


def test_a_container_of_the_same_name_is_merged_and_keeps_what_the_patch_leaves_out() -> None:
    merged = engine(merge(BASE, on_engine(image="theirs")))

    assert (merged["image"], merged["args"]) == ("theirs", ["serve"])


def test_a_container_of_another_name_is_added_behind_ours() -> None:
    merged = merge(BASE, pod(containers=[{"name": "sidecar", "image": "proxy"}]))

    assert [one["name"] for one in merged["spec"]["containers"]] == ["engine", "sidecar"]


def test_an_environment_variable_is_replaced_by_name_and_new_ones_are_added() -> None:
    patch = on_engine(env=[{"name": "B", "value": "20"}, {"name": "C", "value": "3"}])

    assert engine(merge(BASE, patch))["env"] == [
        {"name": "A", "value": "1"}, {"name": "B", "value": "20"}, {"name": "C", "value": "3"},
    ]  # fmt: skip


def test_an_environment_variable_that_changes_its_source_loses_the_old_one() -> None:
    source = {"secretKeyRef": {"name": "s", "key": "k"}}
    patch = on_engine(env=[{"name": "A", "valueFrom": source}])

    assert engine(merge(BASE, patch))["env"][0] == {"name": "A", "valueFrom": source}


def test_a_volume_that_changes_its_kind_loses_the_old_one() -> None:
    merged = merge(BASE, pod(volumes=[{"name": "scratch", "hostPath": {"path": "/fast"}}]))

    assert merged["spec"]["volumes"][0] == {"name": "scratch", "hostPath": {"path": "/fast"}}
    assert merged["spec"]["volumes"][1] == BASE["spec"]["volumes"][1]


def test_a_volume_of_the_same_kind_is_merged() -> None:
    merged = merge(BASE, pod(volumes=[{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}]))

    assert merged["spec"]["volumes"][0] == {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}


def test_mounts_are_told_apart_by_their_path_and_ports_by_their_number() -> None:
    patch = on_engine(
        volumeMounts=[{"name": "fast", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
        ports=[{"containerPort": 8000, "hostPort": 80}, {"containerPort": 9000}],
    )

    merged = engine(merge(BASE, patch))

    assert merged["volumeMounts"] == [
        {"name": "fast", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"},
    ]  # fmt: skip
    assert merged["ports"] == [
        {"name": "http", "containerPort": 8000, "hostPort": 80},
        {"containerPort": 9000},
    ]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (on_engine(args=["other"]), ["other"]),
        (on_engine(args=[]), []),
    ],
)
def test_lists_without_identity_are_replaced(patch: dict[str, Any], expected: list[str]) -> None:
    assert engine(merge(BASE, patch))["args"] == expected


def test_tolerations_are_replaced_as_kubernetes_does() -> None:
    assert merge(BASE, pod(tolerations=[{"key": "x"}]))["spec"]["tolerations"] == [{"key": "x"}]


def test_null_removes_a_field() -> None:
    merged = merge(BASE, {"spec": {"terminationGracePeriodSeconds": None, "absent": None}})

    assert "terminationGracePeriodSeconds" not in merged["spec"]
    assert "absent" not in merged["spec"]


def test_an_item_can_be_deleted_and_one_that_is_not_there_is_no_error() -> None:
    patch = on_engine(env=[{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}])

    assert [one["name"] for one in engine(merge(BASE, patch))["env"]] == ["B"]


def test_a_list_can_be_replaced_as_a_whole() -> None:
    patch = on_engine(env=[{"$patch": "replace"}, {"name": "ONLY", "value": "1"}])

    assert engine(merge(BASE, patch))["env"] == [{"name": "ONLY", "value": "1"}]


def test_an_object_can_be_replaced_or_emptied() -> None:
    replaced = merge(BASE, on_engine(resources={"$patch": "replace", "requests": {"cpu": "1"}}))
    emptied = merge(BASE, on_engine(resources={"$patch": "delete"}))

    assert engine(replaced)["resources"] == {"requests": {"cpu": "1"}}
    assert engine(emptied)["resources"] == {}


@pytest.mark.parametrize(
    ("patch", "path"),
    [
        (pod(containers=[{"image": "x"}]), "podTemplate.spec.containers[0]"),
        (pod(containers=["x"]), "podTemplate.spec.containers[0]"),
        (pod(containers={"name": "x"}), "podTemplate.spec.containers"),
        (pod(containers="x"), "podTemplate.spec.containers"),
        ({"spec": "x"}, "podTemplate.spec"),
        (
            {"spec": {"terminationGracePeriodSeconds": {"seconds": 5}}},
            "podTemplate.spec.terminationGracePeriodSeconds",
        ),
        ({"spec": {"terminationGracePeriodSeconds": [5]}}, "podTemplate.spec.terminationGracePeriodSeconds"),
        ({"metadata": []}, "podTemplate.metadata"),
        (pod(volumes=[{"emptyDir": {}}]), "podTemplate.spec.volumes[0]"),
        (on_engine(env=[{"value": "x"}]), "podTemplate.spec.containers[0].env[0]"),
        ({"spec": {"$patch": "merged"}}, "podTemplate.spec.$patch"),
        ({"spec": {"$retainKeys": ["x"]}}, "podTemplate.spec.$retainKeys"),
    ],
)
def test_what_cannot_be_merged_is_refused_with_its_path(patch: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidPatch) as caught:
        merge(BASE, patch)

    assert str(caught.value).startswith(f"{path}:")


FIELD = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"configMapKeyRef": {"name": "c", "key": "k"}}, {"configMapKeyRef": {"name": "c", "key": "k"}}),
        ({"fieldRef": {"fieldPath": "status.hostIP"}}, {"fieldRef": {"fieldPath": "status.hostIP"}}),
    ],
    ids=["another source", "the same source"],
)
def test_a_variable_takes_its_value_from_one_source(source: dict[str, Any], expected: dict[str, Any]) -> None:
    merged = merge({"env": [FIELD]}, {"env": [{"name": "A", "valueFrom": source}]})

    assert merged["env"] == [{"name": "A", "valueFrom": expected}]


SCALARS = st.none() | st.booleans() | st.integers(0, 9) | st.text("ab", max_size=2)
NAMES = st.sampled_from(["a", "b", "engine"])


def leaf() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["x", "y"]), SCALARS, max_size=2)


def objects() -> st.SearchStrategy[dict[str, Any]]:
    """Return Pod-like objects, two levels of lists with identity deep."""
    variables = keyed("env", leaf())
    container = st.fixed_dictionaries({}, optional={"env": variables, "x": SCALARS, "args": ARGUMENTS})
    return st.fixed_dictionaries({}, optional={"containers": keyed("containers", container), "spec": leaf()})


ARGUMENTS = st.lists(st.sampled_from("ab"), max_size=2)


def keyed(field: str, items: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    key = MERGE_KEYS[field]
    return st.dictionaries(NAMES, items, max_size=3).map(
        lambda by_name: [{**item, key: name} for name, item in by_name.items()]
    )


def cleaned(value: Any) -> Any:
    """Return the object without nulls, the result of merging it with itself."""
    match value:
        case dict():
            return {key: cleaned(inner) for key, inner in value.items() if inner is not None}
        case list():
            return [cleaned(inner) for inner in value]
    return value


@given(objects(), objects())
def test_merging_twice_is_merging_once(base: dict[str, Any], patch: dict[str, Any]) -> None:
    once = merge(cleaned(base), patch)

    assert merge(once, patch) == once


@given(objects(), objects())
def test_neither_side_is_changed_nor_shared_with_the_result(
    base: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = copy.deepcopy((base, patch))

    result = merge(base, patch)
    poison(result)

    assert (base, patch) == before


def poison(value: Any) -> None:
    match value:
        case dict():
            for inner in value.values():
                poison(inner)
            value["poison"] = True
        case list():
            for inner in value:
                poison(inner)
            value.append("poison")


@given(objects())
def test_a_patch_on_nothing_is_the_patch_without_its_nulls(patch: dict[str, Any]) -> None:
    assert merge({}, patch) == cleaned(patch)


@given(objects(), objects())
def test_no_identity_appears_twice(base: dict[str, Any], patch: dict[str, Any]) -> None:
    check_unique(merge(cleaned(base), patch))


def check_unique(value: Any) -> None:
    if isinstance(value, dict):
        for field, inner in value.items():
            key = MERGE_KEYS.get(field)
            if key is not None:
                identities = [item[key] for item in inner]
                assert len(identities) == len(set(identities))
                for item in inner:
                    check_unique(item)
            check_unique(inner)
