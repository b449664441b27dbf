"""Which GPU an engine may get, by the labels and taints of nodes: as the scheduler reads the pod."""

from typing import Any

import pytest

from mamba_operator.memory.pin import smallest_gpu
from mamba_operator.observation.placement import Node, may_run_on, node_of

GPU = "nvidia.com/gpu"
GI = 2**30


def node(
    memory: str = "81920", taints: tuple[dict[str, str], ...] = (), cordoned: bool = False, **labels: str
) -> Node:
    """Return a node as the API server gives it, and the part of it that is kept."""
    spec = {"taints": list(taints), **({"unschedulable": True} if cordoned else {})}
    return node_of({"metadata": {"name": "a", "labels": {f"{GPU}.memory": memory, **labels}}, "spec": spec})


def taint(effect: str = "NoSchedule", key: str = "team", value: str = "vision") -> dict[str, str]:
    return {"key": key, "value": value, "effect": effect} if value else {"key": key, "effect": effect}


def tolerating(*tolerations: Any) -> dict[str, Any]:
    return {"tolerations": list(tolerations)}


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


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute"])
@pytest.mark.parametrize(
    ("pod", "runs"),
    [
        ({}, False),
        ({"tolerations": None}, False),
        ({"tolerations": "all"}, False),
        (tolerating("all"), False),
        (tolerating({}), False),
        (tolerating({"operator": "Exists"}), True),
        (tolerating({"operator": "Exists", "key": ""}), True),
        (tolerating({"operator": "Exists", "key": "team"}), True),
        (tolerating({"operator": "Exists", "key": "teams"}), False),
        (tolerating({"operator": "Exists", "key": "team", "effect": "PreferNoSchedule"}), False),
        (tolerating({"key": "team", "value": "vision"}), True),
        (tolerating({"operator": "", "key": "team", "value": "vision", "effect": ""}), True),
        (tolerating({"operator": "Equal", "key": "team", "value": "vision"}), True),
        (tolerating({"operator": "Equal", "key": "team", "value": "text"}), False),
        (tolerating({"operator": "Equal", "key": "team"}), False),
        (tolerating({"operator": "Near", "key": "team", "value": "vision"}), False),
        (tolerating({"key": "other"}, {"operator": "Exists", "key": "team"}), True),
        ({**tolerating({"operator": "Exists"}), "nodeSelector": {"pool": "small"}}, False),
    ],
    ids=str,
)
def test_a_taint_keeps_a_pod_off_that_does_not_tolerate_it(
    pod: dict[str, Any], runs: bool, effect: str
) -> None:
    assert may_run_on(node(taints=(taint(effect),)), pod) is runs


def test_a_toleration_of_one_effect_tolerates_no_other() -> None:
    pod = tolerating({"operator": "Exists", "key": "team", "effect": "NoSchedule"})

    assert may_run_on(node(taints=(taint("NoSchedule"),)), pod)
    assert not may_run_on(node(taints=(taint("NoExecute"),)), pod)


def test_all_taints_of_a_node_have_to_be_tolerated() -> None:
    both = node(taints=(taint(), taint(key="dedicated", value="")))

    assert not may_run_on(both, tolerating({"key": "team", "value": "vision"}))
    assert may_run_on(both, tolerating({"key": "team", "value": "vision"}, {"key": "dedicated"}))


def test_a_taint_that_only_asks_to_be_avoided_keeps_no_pod_off() -> None:
    assert may_run_on(node(taints=(taint("PreferNoSchedule"),)), {})


@pytest.mark.parametrize(
    "key",
    [
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/memory-pressure",
        "node.cloudprovider.kubernetes.io/uninitialized",
    ],
)
def test_a_node_that_is_cordoned_or_not_well_counts_as_it_will_again(key: str) -> None:
    small = node("15360", taints=(taint(key=key, value=""),), cordoned=True)

    assert smallest_gpu([node(), small], {}, GPU) == 15 * GI


def test_the_gpus_of_a_tainted_node_count_for_pods_that_tolerate_it() -> None:
    nodes = [node(), node("15360", taints=(taint(),))]

    assert smallest_gpu(nodes, {}, GPU) == 80 * GI
    assert smallest_gpu(nodes, tolerating({"operator": "Exists", "key": "team"}), GPU) == 15 * GI
