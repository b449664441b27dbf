"""Nodes come and go; what serves stays as it was planned until its pods are replaced for another reason."""

from typing import Any

import pytest

from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import DoesNotFit, Fits, Unknown
from mamba_operator.objects.manifest import Manifest, Ref, annotation, ref
from mamba_operator.observation.placement import Node
from operator_objects import NOW, applied, edited, fitting_owner, planned, snapshot

BIG, MIDDLE, SMALL = (Node({"nvidia.com/gpu.memory": mib}) for mib in ("81559", "46068", "15360"))
FLEETS: list[tuple[Node, ...]] = [
    (MIDDLE,), (BIG, MIDDLE), (SMALL,), (BIG, SMALL), (), (Node({"nvidia.com/gpu.memory": "many"}),),
]  # fmt: skip
RESTARTED = {"annotations": {"serving.mambaserve.io/restarted-at": "2"}}
PLANNED_FOR = "serving.mambaserve.io/planned-for"


def served(*nodes: Node, **spec: Any) -> tuple[Manifest, list[Manifest]]:
    """Return an object and its children, created while the cluster had these nodes."""
    of = fitting_owner(memory={}, **spec)
    return of, applied(of, nodes=nodes)


def finding(of: Manifest, children: list[Manifest], *nodes: Node) -> tuple[str, str, str]:
    seen = snapshot(of, children, nodes=nodes)
    plan = planned(of, children, nodes=nodes)
    status = summarize(seen, plan, (), now=NOW)
    assert status is not None
    condition = find_condition(status.conditions, ConditionType.PLANNED)
    assert condition is not None
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("first", [(BIG,), (MIDDLE, BIG), ()], ids=["big", "mixed", "none"])
def test_nodes_that_come_and_go_change_nothing_that_serves(
    first: tuple[Node, ...], fleet: tuple[Node, ...]
) -> None:
    of, children = served(*first)
    before = planned(of, children, nodes=first)

    after = planned(of, children, nodes=fleet)

    assert (after.applies, after.deletes, after.replicas) == ((), (), 1)
    assert after.verdict == before.verdict


def test_a_node_that_engines_do_not_tolerate_is_no_other_fleet() -> None:
    of, children = served(BIG)
    kept_off = Node(SMALL.labels, ({"key": "team", "value": "vision", "effect": "NoSchedule"},))
    tolerant, theirs = served(BIG, scheduling={"tolerations": [{"key": "team", "operator": "Exists"}]})

    assert finding(of, children, BIG, kept_off)[:2] == ("True", Reason.PLAN_COMPUTED)
    assert finding(tolerant, theirs, BIG, kept_off)[:2] == ("True", Reason.PLAN_DIFFERS)


def test_the_taint_of_the_gpus_that_engines_ask_for_keeps_none_of_them_off() -> None:
    own = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    of, children = served(BIG)

    assert finding(of, children, BIG, Node(SMALL.labels, (own,)))[:2] == ("True", Reason.PLAN_DIFFERS)


def test_another_fleet_is_told_with_what_would_be_planned_for_it() -> None:
    of, children = served(BIG)

    status, reason, message = finding(of, children, BIG, SMALL)

    assert (status, reason) == ("True", Reason.PLAN_DIFFERS)
    assert "15.0Gi" in message
    assert planned(of, nodes=(SMALL,)).verdict.message in message  # type: ignore[union-attr]
    assert "restarted-at" in message


@pytest.mark.parametrize("fleet", [(BIG,), (), (BIG, BIG)])
def test_the_fleet_it_was_planned_for_and_an_empty_one_are_no_difference(
    fleet: tuple[Node, ...],
) -> None:
    of, children = served(BIG)

    assert finding(of, children, *fleet)[:2] == ("True", Reason.PLAN_COMPUTED)


def test_engines_that_planned_for_themselves_are_left_alone_when_a_label_comes() -> None:
    of, children = served()

    status, reason, message = finding(of, children, MIDDLE)

    assert (status, reason) == ("Unknown", Reason.PLAN_DIFFERS)
    assert "45.0Gi" in message


def planned_after(change: dict[str, Any], *, metadata: dict[str, Any] | None = None) -> ReconcilePlan:
    """Return the plan for a change of an object planned for big GPUs, when only smaller ones exist."""
    _, children = served(BIG)
    of = fitting_owner(memory={}, **change)
    of["metadata"] |= metadata or {}
    return planned(of, children, nodes=(MIDDLE,))


@pytest.mark.parametrize(
    ("change", "meta"),
    [({"engine": {"image": "registry.test/engine:2"}}, {}), ({}, RESTARTED)],
    ids=["another image", "a restart"],
)
def test_pods_that_are_replaced_anyway_are_planned_for_the_nodes_of_the_day(
    change: dict[str, Any], meta: dict[str, Any]
) -> None:
    plan = planned_after(change, metadata=meta)

    assert plan.verdict == planned(fitting_owner(memory={}), nodes=(MIDDLE,)).verdict
    assert Ref("Deployment", "nano-engine") in {ref(one.manifest) for one in plan.applies}


@pytest.mark.parametrize("change", [{"replicas": 3}, {"gateway": {"replicas": 2}}], ids=["scale", "gateway"])
def test_a_change_that_replaces_no_engine_keeps_the_plan(change: dict[str, Any]) -> None:
    plan = planned_after(change)

    assert plan.verdict == planned(fitting_owner(memory={}), nodes=(BIG,)).verdict
    templates = {
        one.manifest["metadata"]["name"]: one.manifest["spec"]["template"]
        for one in plan.applies
        if one.manifest["kind"] == "Deployment"
    }
    before = {one["metadata"]["name"]: one for one in served(BIG)[1] if one["kind"] == "Deployment"}
    assert templates.get("nano-engine") in (None, before["nano-engine"]["spec"]["template"])


def test_memory_that_the_spec_says_wins_over_all_nodes_and_leaves_no_note() -> None:
    of = fitting_owner()
    [engine] = [one for one in applied(of, nodes=(SMALL,)) if ref(one) == Ref("Deployment", "nano-engine")]

    assert isinstance(planned(of, nodes=(SMALL,)).verdict, Fits)
    assert annotation(engine, PLANNED_FOR) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"revision": 1}', '{"gpuMemory": 5}', "null", "1", '{"revision": null}']
)
def test_a_note_that_somebody_damaged_is_made_anew_from_the_nodes(text: str) -> None:
    of, children = served(BIG)

    def damage(child: Manifest) -> None:
        child["metadata"]["annotations"][PLANNED_FOR] = text

    damaged = edited(children, "Deployment", "nano-engine", damage)
    plan = planned(of, damaged, nodes=(BIG,))

    assert [ref(one.manifest) for one in plan.applies] == [Ref("Deployment", "nano-engine")]
    assert annotation(plan.applies[0].manifest, PLANNED_FOR) == annotation(
        next(one for one in children if ref(one) == Ref("Deployment", "nano-engine")), PLANNED_FOR
    )


def test_a_first_revision_that_fits_no_gpu_of_the_cluster_starts_nothing() -> None:
    of = fitting_owner(memory={})

    assert isinstance(planned(of, nodes=(SMALL,)).verdict, DoesNotFit)
    assert isinstance(planned(of).verdict, Unknown)
