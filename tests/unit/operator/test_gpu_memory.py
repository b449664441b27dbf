"""Which GPU an engine may get, by the labels of nodes: as the scheduler reads the pod."""

from typing import Any

import pytest

from mamba_operator.gpu_memory import may_run_on, smallest_gpu

GPU = "nvidia.com/gpu"
GI = 2**30


def node(memory: str = "81920", **labels: str) -> dict[str, Any]:
    return {"metadata.name": "a", f"{GPU}.memory": memory, **labels}


def required(*requirements: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    term = {"matchExpressions": list(requirements), "matchFields": list(fields)}
    chosen = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": chosen}}


def rule(operator: str, *values: str, key: str = "pool") -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("labels", "smallest"),
    [
        ([], None),
        (["81920"], 80 * GI),
        (["81920", "16384", "40960"], 16 * GI),
        (["many", "", "-5", "81920"], 80 * GI),
        (["many"], None),
        (["81920.5"], int(81920 * GI / 1024)),
    ],
)
def test_the_smallest_gpu_counts_and_labels_that_are_no_number_do_not(
    labels: list[str], smallest: int | None
) -> None:
    found = smallest_gpu([node(label) for label in labels], {}, GPU)

    assert found == (smallest if labels != ["81920.5"] else int(81920.5 * 2**20))


def test_a_slice_of_a_gpu_has_the_memory_of_the_slice() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    sliced = node("81920", **{f"{mig}.memory": "9856"})

    assert smallest_gpu([sliced, node("16384")], {}, mig) == 9856 << 20


@pytest.mark.parametrize("resource", [GPU, f"{GPU}.shared"])
def test_pods_that_take_turns_on_a_gpu_share_its_memory(resource: str) -> None:
    shared = node("40960", **{f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "time-slicing"})
    alone = node("40960", **{f"{GPU}.replicas": "4", f"{GPU}.sharing-strategy": "none"})

    assert smallest_gpu([shared], {}, resource) == 10 * GI
    assert smallest_gpu([alone], {}, resource) == 40 * GI


@pytest.mark.parametrize(
    ("pod", "runs"),
    [
        ({}, True),
        ({"nodeSelector": {"pool": "big"}}, True),
        ({"nodeSelector": {"pool": "small"}}, False),
        ({"nodeSelector": {"absent": "x"}}, False),
        (required(rule("In", "small", "big")), True),
        (required(rule("In", "small")), False),
        (required(rule("NotIn", "small")), True),
        (required(rule("NotIn", "big")), False),
        (required(rule("NotIn", "x", key="absent")), True),
        (required(rule("Exists"), rule("DoesNotExist", key="absent")), True),
        (required(rule("Exists"), rule("DoesNotExist")), False),
        (required(rule("Gt", "40000", key=f"{GPU}.memory")), True),
        (required(rule("Lt", "40000", key=f"{GPU}.memory")), False),
        (required(rule("Gt", "1")), False),
        (required(fields=(rule("In", "a", key="metadata.name"),)), True),
        (required(fields=(rule("In", "b", key="metadata.name"),)), False),
        (required(), False),
        (required(rule("Near", "big")), False),
        ({"nodeSelector": {"pool": "big"}, **required(rule("In", "small"))}, False),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, False),
        ({"affinity": {"podAffinity": {}}}, True),
        ({"affinity": None, "nodeSelector": None}, True),
    ],
)
def test_a_pod_runs_where_its_selector_and_required_affinity_let_it(pod: dict[str, Any], runs: bool) -> None:
    assert may_run_on(node(pool="big"), pod) is runs
