"""Where no node has room for one engine more, an old one goes first, and nowhere else."""

import copy
from datetime import timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.objects.manifest import Manifest, Ref, ref
from operator_objects import NOW, applied, fitting_owner, planned, running, snapshot

GPU = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match node selector."
LABELS = names.labels("nano", "engine")
ASKED = {"containers": [{"name": "engine", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]}
TWO_GPUS = {"containers": [{"name": "engine", "resources": {"requests": {"nvidia.com/gpu": "2"}}}]}


def revision_of(children: list[Manifest]) -> str:
    engine = next(one for one in children if ref(one).name == "nano-engine" and one["kind"] == "Deployment")
    return str(engine["spec"]["template"]["metadata"]["labels"][names.LABEL_REVISION])


def pod(name: str, revision: str, *, spec: Manifest | None = None, **status: Any) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "models", "labels": {**LABELS, names.LABEL_REVISION: revision},
        },
        "spec": ASKED if spec is None else spec,
        "status": status,
    }  # fmt: skip


def waits(seconds: float, message: str = GPU) -> Manifest:
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
        "lastTransitionTime": since,
    }  # fmt: skip
    return {"phase": "Pending", "conditions": [condition]}


class RollOut:
    """A new image, with the old engine still there and the new one waiting."""

    def __init__(self, **rollout: Any) -> None:
        spec = {"engine": {"image": "registry.test/engine:2"}, "rollout": {"inPlaceAfter": "60s", **rollout}}
        self.owner = fitting_owner(**spec)
        self.children = running(applied(self.owner), engines=1)
        self.new = revision_of(self.children)
        self.old = pod("old", "an-old-one", phase="Running")

    def planned(self, *pods: Manifest) -> ReconcilePlan:
        return planned(self.owner, self.children, pods=pods)

    def surge(self, plan: ReconcilePlan) -> tuple[int, int] | None:
        """Return (maxSurge, maxUnavailable) of the engine Deployment that is written; None where none is."""
        for one in plan.applies:
            if ref(one.manifest).name == "nano-engine" and one.manifest["kind"] == "Deployment":
                how = one.manifest["spec"]["strategy"]["rollingUpdate"]
                assert all(type(number) is int for number in how.values()), "as the API server reads them"
                return how["maxSurge"], how["maxUnavailable"]
        return None


def test_a_pod_that_waits_for_what_an_old_one_has_takes_its_place() -> None:
    out = RollOut()
    early = out.planned(out.old, pod("new", out.new, **waits(59)))
    assert (early.in_place, out.surge(early), early.requeue_after) == (False, None, 1.0)
    plan = out.planned(out.old, pod("new", out.new, **waits(60)))
    assert (plan.in_place, out.surge(plan)) == (True, (0, 1))


def test_it_goes_on_until_no_old_engine_is_left_and_then_new_ones_come_first_again() -> None:
    out = RollOut()
    plan = out.planned(out.old, pod("new", out.new, **waits(60)))
    [change] = [one for one in plan.applies if out.surge(plan) and one.manifest["kind"] == "Deployment"]
    written = copy.deepcopy(change.manifest)
    out.children = [
        {**one, **written, "metadata": {**one["metadata"], **written["metadata"]}}
        if ref(one) == ref(written)
        else one
        for one in out.children
    ]
    leaving = {**out.old, "metadata": {**out.old["metadata"], "deletionTimestamp": NOW.isoformat()}}
    for pods in (
        (leaving, pod("new", out.new, **waits(70))),
        (out.old, pod("new", out.new, phase="Running")),
        (out.old, pod("new", out.new, phase="Running"), pod("newer", out.new, **waits(1))),
    ):
        assert out.planned(*pods).in_place
    done = out.planned(pod("new", out.new, phase="Running"))
    assert (done.in_place, out.surge(done)) == (False, (1, 0))


@pytest.mark.parametrize(
    ("rollout", "spec", "status"),
    [
        ({"pause": True}, None, waits(999)),
        ({"maxSurge": 0, "maxUnavailable": 1}, None, waits(999)),
        ({"inPlaceAfter": "1h"}, None, waits(999)),
        ({}, {**ASKED, "nodeSelector": {"gpu": "h100"}}, waits(999)),
        ({}, TWO_GPUS, waits(999)),
        ({}, None, waits(999, "0/3 nodes are available: 3 node(s) had untolerated taint {gpu: down}.")),
        ({}, None, waits(999, "running PreBind plugin: binding volumes: timed out")),
        ({}, None, {"phase": "Pending"}),
    ],
    ids=["paused", "no surge anyway", "patience", "another place", "more GPUs", "taints", "volumes", "new"],
)  # fmt: skip
def test_nothing_that_serves_goes_for_a_pod_that_would_not_get_its_place(
    rollout: Manifest, spec: Manifest | None, status: Manifest
) -> None:
    out = RollOut(**rollout)
    plan = out.planned(out.old, pod("new", out.new, spec=spec, **status))
    assert not plan.in_place
    assert out.surge(plan) is None


TOLERANT = {**ASKED, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}


def test_a_pod_that_tolerates_more_takes_the_place_of_one_that_tolerates_less_and_not_the_other_way() -> None:
    out = RollOut()
    assert out.planned(out.old, pod("new", out.new, spec=TOLERANT, **waits(60))).in_place

    tolerant = pod("old", "an-old-one", spec=TOLERANT, phase="Running")
    assert not out.planned(tolerant, pod("new", out.new, **waits(60))).in_place


def test_without_an_old_engine_that_could_go_nothing_is_replaced() -> None:
    out = RollOut()
    leaving = {**out.old, "metadata": {**out.old["metadata"], "deletionTimestamp": NOW.isoformat()}}
    assert not out.planned(leaving, pod("new", out.new, **waits(999))).in_place
    assert not out.planned(pod("new", out.new, **waits(999))).in_place
    gateway = {
        **pod("gateway", "an-old-one"),
        "metadata": {"name": "g", "labels": names.labels("nano", "gateway")},
    }
    assert not out.planned(gateway, pod("new", out.new, **waits(999))).in_place


def test_an_old_engine_that_was_evicted_keeps_no_roll_out_in_place_and_begins_none() -> None:
    out = RollOut()
    record = pod("evicted", "an-old-one", phase="Failed", reason="Evicted")
    assert not out.planned(record, pod("new", out.new, **waits(999))).in_place

    engine = next(one for one in out.children if ref(one) == Ref("Deployment", "nano-engine"))
    engine["spec"]["strategy"]["rollingUpdate"] = {"maxSurge": 0, "maxUnavailable": 1}
    done = out.planned(record, pod("new", out.new, phase="Running"))
    assert (done.in_place, out.surge(done)) == (False, (1, 0))


def test_an_engine_goes_by_default_once_a_cloud_has_had_time_to_make_a_node() -> None:
    out = RollOut(inPlaceAfter=None)
    early, late = (out.planned(out.old, pod("new", out.new, **waits(age))) for age in (599, 600))
    assert (early.in_place_soon, late.in_place, out.surge(late)) == (True, True, (0, 1))


def test_a_written_zero_keeps_the_only_engine_and_progressing_says_what_the_change_waits_for() -> None:
    out = RollOut(maxUnavailable=0, inPlaceAfter=None)
    pods = (out.old, pod("new", out.new, **waits(9999)))
    plan = out.planned(*pods)
    assert (plan.in_place, out.surge(plan), plan.requeue_after) == (False, None, None)
    surged = copy.deepcopy(out.children)
    engine = next(one for one in surged if ref(one) == Ref("Deployment", "nano-engine"))
    engine["status"] |= {"replicas": 2, "updatedReplicas": 1}
    status = summarize(
        snapshot(out.owner, surged, pods=pods), planned(out.owner, surged, pods=pods), (), now=NOW
    )
    assert status is not None
    [progressing] = [one for one in status.conditions if one.type == "Progressing"]
    assert "spec.rollout.maxUnavailable 0" in progressing.message
    assert "spec.rollout.inPlaceAfter" in progressing.message
    asked_for = RollOut(maxUnavailable=0)
    assert asked_for.planned(asked_for.old, pod("new", asked_for.new, **waits(60))).in_place


def test_a_pod_behind_the_gate_of_a_queue_takes_the_place_of_an_old_one_and_one_behind_another_does_not() -> (
    None
):
    out = RollOut()

    def gated(gate: str) -> Manifest:
        one = pod("new", out.new, spec={**ASKED, "schedulingGates": [{"name": gate}]}, phase="Pending")
        one["metadata"]["creationTimestamp"] = (NOW - timedelta(seconds=60)).isoformat()
        return one

    assert out.planned(out.old, gated("kueue.x-k8s.io/admission")).in_place
    assert not out.planned(out.old, gated("example.com/somebody-decides")).in_place


def test_the_time_that_is_left_until_an_engine_goes_is_told_before_it_does() -> None:
    out = RollOut()
    early = out.planned(out.old, pod("new", out.new, **waits(10)))
    assert early.in_place_soon
    never = RollOut(inPlaceAfter="40m").planned(out.old, pod("new", out.new, **waits(10)))
    assert not never.in_place_soon


def restarted(name: str, revision: str, template: str, **status: Any) -> Manifest:
    """Return a pod after `kubectl rollout restart` of its Deployment: the revision is the same for all."""
    one = pod(name, revision, **status)
    one["metadata"]["labels"]["pod-template-hash"] = template
    return one


def test_a_restart_of_the_deployment_by_hand_is_in_place_where_there_is_no_room_until_all_are_new() -> None:
    out = RollOut()
    old, new = restarted("old", out.new, "a", phase="Running"), restarted("new", out.new, "b", **waits(60))
    plan = out.planned(old, new)
    assert (plan.in_place, out.surge(plan)) == (True, (0, 1))
    engine = next(one for one in out.children if ref(one) == Ref("Deployment", "nano-engine"))
    engine["spec"]["strategy"]["rollingUpdate"]["maxSurge"] = 0
    going = {**old, "metadata": {**old["metadata"], "deletionTimestamp": NOW.isoformat()}}
    assert out.planned(going, new).in_place
    assert not out.planned(restarted("new", out.new, "b", phase="Running")).in_place
