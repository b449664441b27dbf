"""Decisions of the operator in every situation."""

import copy
import json
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.children.child_comparison import Change
from mamba_operator.memory.verdict import (
    DoesNotFit,
    Fits,
    ModelNotServed,
    SpecInvalid,
    Unknown,
)
from mamba_operator.objects.manifest import Manifest, Ref, ref
from mamba_operator.observation.placement import Node
from mamba_operator.plan import WAITING_PERIOD, make_plan
from model_configs import unserved_config
from operator_objects import (
    NOW,
    UID,
    applied,
    creating_pod,
    edited,
    fitting_owner,
    owner,
    planned,
    snapshot,
    without,
)

ALL = {
    Ref("Secret", "nano-admin-11111111"), Ref("ServiceAccount", "nano"), Ref("Role", "nano"),
    Ref("RoleBinding", "nano"), Ref("ConfigMap", "nano-engine"), Ref("ConfigMap", "nano-wake"),
    Ref("Service", "nano-engine"),
    Ref("Service", "nano"),
    Ref("NetworkPolicy", "nano-engine"),
    Ref("Deployment", "nano-engine"), Ref("Deployment", "nano"),
}  # fmt: skip


def test_an_object_that_is_gone_needs_nothing() -> None:
    plan = planned(None)

    assert (plan.applies, plan.deletes, plan.verdict) == ((), (), None)


def test_an_object_that_is_being_deleted_gets_no_new_children() -> None:
    going = fitting_owner()
    going["metadata"]["deletionTimestamp"] = "2026-01-02T11:59:00Z"

    assert planned(going).applies == ()


def test_a_new_object_gets_every_child_with_the_secret_first_and_the_pods_last() -> None:
    plan = planned(fitting_owner())

    order = [ref(change.manifest) for change in plan.applies]
    assert set(order) == ALL
    assert order[0] == Ref("Secret", "nano-admin-11111111")
    assert {one.kind for one in order[-2:]} == {"Deployment"}
    assert {change.change for change in plan.applies} == {Change.MISSING}


def test_every_child_is_owned_so_that_the_cluster_collects_it() -> None:
    for change in planned(fitting_owner()).applies:
        [reference] = change.manifest["metadata"]["ownerReferences"]
        assert (reference["uid"], reference["controller"]) == (UID, True)
        assert change.manifest["metadata"]["namespace"] == "models"
        assert change.manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "nano"


def test_a_second_look_finds_nothing_to_do() -> None:
    of = fitting_owner()

    plan = planned(of, applied(of))

    assert (plan.applies, plan.deletes, plan.terminating) == ((), (), ())


def test_a_deleted_child_is_missing_and_only_that_one() -> None:
    of = fitting_owner()

    [change] = planned(of, without(applied(of), "Service", "nano-engine")).applies

    assert (ref(change.manifest), change.change) == (Ref("Service", "nano-engine"), Change.MISSING)


EDITS: list[tuple[str, str, Any, str]] = [
    ("Deployment", "nano-engine", lambda d: d["spec"].update(replicas=7), "spec.replicas"),
    (
        "Deployment", "nano-engine",
        lambda d: d["spec"]["template"]["spec"]["containers"][0].update(image="other"),
        "spec.template.spec.containers[engine].image",
    ),
    ("Service", "nano", lambda s: s["spec"]["ports"][0].update(port=81), "spec.ports[http].port"),
    ("ConfigMap", "nano-engine", lambda c: c["data"].pop("engine.json"), "data.engine.json"),
    ("Role", "nano", lambda r: r["rules"].pop(), "rules"),
    ("NetworkPolicy", "nano-engine", lambda n: n["spec"].update(ingress=[{}]), "spec.ingress"),
    ("Service", "nano", lambda s: s["metadata"]["labels"].pop("app.kubernetes.io/part-of"),
     "metadata.labels.app.kubernetes.io/part-of"),
]  # fmt: skip


def test_a_budget_comes_with_the_second_engine_and_goes_with_it() -> None:
    one, two = fitting_owner(), fitting_owner(replicas=2)
    budget = Ref("PodDisruptionBudget", "nano-engine")

    grown, shrunk = planned(two, applied(one)), planned(one, applied(two))

    assert [ref(each.manifest) for each in grown.applies] == [budget, Ref("Deployment", "nano-engine")]
    assert [each.ref for each in shrunk.deletes] == [budget]


@pytest.mark.parametrize(("kind", "name", "edit", "path"), EDITS, ids=[one[3] for one in EDITS])
def test_an_edit_by_hand_is_repaired_and_the_field_is_named(
    kind: str, name: str, edit: Any, path: str
) -> None:
    of = fitting_owner()

    [change] = planned(of, edited(applied(of), kind, name, edit)).applies

    assert (ref(change.manifest), change.change, change.detail) == (Ref(kind, name), Change.DRIFTED, path)


def test_what_others_add_to_a_child_is_theirs() -> None:
    of = fitting_owner()

    def add(deployment: Manifest) -> None:
        deployment["metadata"]["labels"]["team"] = "search"
        pod = deployment["spec"]["template"]["spec"]
        pod["containers"].insert(0, {"name": "sidecar", "image": "proxy"})
        pod["containers"][1]["env"].append({"name": "INJECTED", "value": "1"})
        pod["dnsPolicy"] = "ClusterFirst"

    assert planned(of, edited(applied(of), "Deployment", "nano-engine", add)).applies == ()


def test_a_changed_spec_updates_what_depends_on_it_and_nothing_else() -> None:
    before = fitting_owner()
    after = fitting_owner(engine={"image": "registry.test/engine:2"})

    [change] = planned(after, applied(before)).applies

    assert (ref(change.manifest), change.change) == (Ref("Deployment", "nano-engine"), Change.OUTDATED)


def test_the_admin_token_is_made_once_and_kept() -> None:
    of = fitting_owner()
    tokens = iter(["first"])

    make_plan(snapshot(of, applied(of)), now=NOW, new_token=lambda: pytest.fail("a token was made"))
    plan = make_plan(snapshot(of), now=NOW, new_token=lambda: next(tokens))

    [secret] = [one for one in plan.applies if one.manifest["kind"] == "Secret"]
    assert secret.create_only
    assert secret.manifest["stringData"] == {"token": "first"}


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_while_an_engine_waits_for_what_it_mounts_the_token_is_made_again_unless_it_is_there(
    reason: str,
) -> None:
    of = fitting_owner()

    plan = planned(of, applied(of), pods=(creating_pod(reason),))

    [change] = plan.applies
    assert (ref(change.manifest).kind, change.create_only) == ("Secret", True)
    assert plan.requeue_after == WAITING_PERIOD


@pytest.mark.parametrize("component", ["gateway", "loader"])
def test_whatever_pod_waits_for_what_it_mounts_is_looked_at_again_soon(component: names.Component) -> None:
    of = fitting_owner()
    pod = creating_pod(labels=names.labels("nano", component))

    plan = planned(of, applied(of), pods=(pod,))

    assert (plan.applies, plan.requeue_after) == ((), WAITING_PERIOD)


def test_engines_that_mount_a_token_of_another_name_get_theirs_before_they_are_replaced() -> None:
    of = fitting_owner()

    def older(engine: Manifest) -> None:
        volumes = engine["spec"]["template"]["spec"]["volumes"]
        next(each for each in volumes if each["name"] == "admin")["secret"]["secretName"] = "nano-admin"

    plan = planned(of, edited(applied(of), "Deployment", "nano-engine", older))
    assert [ref(one.manifest).kind for one in plan.applies] == ["Secret", "Deployment"]


def downloading_pod() -> Manifest:
    pod = creating_pod("PodInitializing")
    return {**pod, "status": {**pod["status"], "initContainerStatuses": [{"state": {"running": {}}}]}}


@pytest.mark.parametrize(
    "pod",
    [
        creating_pod("CrashLoopBackOff"),
        creating_pod(deletionTimestamp="2026-01-02T11:59:00Z"),
        downloading_pod(),
    ],
    ids=["runs", "goes", "downloads"],
)
def test_a_pod_that_waits_for_nothing_asks_for_no_token(pod: Manifest) -> None:
    of = fitting_owner()
    plan = planned(of, applied(of), pods=(pod,))
    assert (plan.applies, plan.requeue_after) == ((), None)


def test_the_token_of_an_object_of_the_same_name_is_another_secret() -> None:
    names = {
        one.manifest["metadata"]["name"]
        for uid in ("11111111-a", "22222222-b")
        for one in planned(fitting_owner(metadata={"uid": uid})).applies
        if one.manifest["kind"] == "Secret"
    }
    assert len(names) == 2


def test_a_child_that_is_not_wanted_any_more_is_deleted_by_its_uid() -> None:
    of = fitting_owner()
    leftover = {"kind": "ConfigMap", "metadata": {"name": "nano-old", "uid": "old"}}

    [removal] = planned(of, [*applied(of), leftover]).deletes

    assert (removal.ref, removal.uid) == (Ref("ConfigMap", "nano-old"), "old")


def test_the_volume_with_the_weights_outlives_a_change_of_mind() -> None:
    of = fitting_owner()
    claim = {"kind": "PersistentVolumeClaim", "metadata": {"name": "nano-model", "uid": "claim"}}

    assert planned(of, [*applied(of), claim]).deletes == ()


def test_foreign_objects_with_our_labels_are_never_touched() -> None:
    of = fitting_owner()
    foreign = {"kind": "ConfigMap", "metadata": {"name": "theirs", "uid": "x"}}

    plan = planned(of, applied(of), foreign={Ref("ConfigMap", "theirs"): foreign})

    assert (plan.applies, plan.deletes) == ((), ())


def test_a_child_on_its_way_out_is_waited_for_instead_of_being_written_to() -> None:
    of = fitting_owner()
    going = edited(
        applied(of),
        "Service",
        "nano",
        lambda s: s["metadata"].update(deletionTimestamp="2026-01-02T11:00:00Z"),
    )

    plan = planned(of, going)

    assert plan.terminating == (Ref("Service", "nano"),)
    assert plan.applies == ()


def test_plan_mode_computes_the_plan_and_touches_nothing() -> None:
    plan = planned(fitting_owner(mode="Plan"))

    assert isinstance(plan.verdict, Fits)
    assert (plan.applies, plan.deletes) == ((), ())


def test_plan_mode_leaves_what_runs_alone() -> None:
    before = fitting_owner()
    after = fitting_owner(mode="Plan", engine={"image": "other"})

    plan = planned(after, applied(before))

    assert (plan.applies, plan.deletes) == ((), ())


def test_a_plan_that_cannot_fit_makes_no_pods_and_says_the_numbers() -> None:
    plan = planned(fitting_owner(memory={"deviceMemory": "16Gi"}))

    assert isinstance(plan.verdict, DoesNotFit)
    assert "16.0Gi" in plan.verdict.message
    assert plan.applies == ()


def test_a_plan_that_cannot_fit_tears_nothing_down() -> None:
    before = fitting_owner()
    after = fitting_owner(memory={"deviceMemory": "16Gi"})

    plan = planned(after, applied(before))

    assert (plan.applies, plan.deletes) == ((), ())


def test_a_model_no_engine_serves_starts_nothing_and_tears_nothing_down() -> None:
    unserved = fitting_owner(model={"uri": "hf://a/b", "config": unserved_config()})

    for children in ([], applied(fitting_owner())):
        plan = planned(unserved, children)
        assert isinstance(plan.verdict, ModelNotServed)
        assert (plan.applies, plan.deletes) == ((), ())


def test_without_the_models_configuration_engines_start_and_plan_for_themselves() -> None:
    plan = planned(owner())

    assert isinstance(plan.verdict, Unknown)
    assert plan.verdict.reason is Reason.MODEL_UNKNOWN
    assert {ref(change.manifest) for change in plan.applies} == ALL


def test_without_a_known_gpu_memory_the_plan_is_unknown_and_node_labels_settle_it() -> None:
    of = fitting_owner(memory={})

    unknown, known = planned(of), planned(of, nodes=(Node({"nvidia.com/gpu.memory": "81920"}),))

    assert isinstance(unknown.verdict, Unknown)
    assert unknown.verdict.reason is Reason.DEVICE_MEMORY_UNKNOWN
    assert isinstance(known.verdict, Fits)


def test_the_chosen_strategy_reaches_the_engine() -> None:
    plan = planned(fitting_owner())

    assert isinstance(plan.verdict, Fits)
    [settings] = [
        one.manifest for one in plan.applies if ref(one.manifest) == Ref("ConfigMap", "nano-engine")
    ]
    document = json.loads(settings["data"]["engine.json"])
    assert document["strategy"] == plan.verdict.plan.strategy != "Auto"


GARBAGE: list[tuple[dict[str, Any], str]] = [
    ({"spec": {}}, "spec.model"),
    ({"spec": None}, "spec"),
    ({"spec": {"model": {"uri": "ftp://x"}}}, "spec.model.uri"),
    ({"spec": {"model": {"uri": "builtin://a"}, "resources": {"gpus": "many"}}}, "spec.resources.gpus"),
    ({"spec": {"model": {"uri": "builtin://a"}, "unknown": 1}}, "spec.unknown"),
    ({"spec": {"model": {"uri": "builtin://a"}, "rollout": {"maxSurge": 0}}}, "maxSurge"),
    ({"spec": ["not", "an", "object"]}, "spec"),
    # Stored before a rule refused it: what no version of the API server would take today.
    ({"spec": {"model": {"uri": "builtin://a"}, "disaggregation": {"prefillReplicas": 1}}}, "disaggregation"),
    ({"spec": {"model": {"uri": "builtin://a"}, "resources": {"gpus": 4}}}, "resources.gpus"),
    ({"spec": {"model": {"uri": "builtin://a"}, "engine": {"tensorParallel": 2}}}, "engine.tensorParallel"),
]


@pytest.mark.parametrize(("broken", "named"), GARBAGE, ids=[one[1] for one in GARBAGE])
def test_a_broken_spec_is_a_verdict_that_names_the_field(broken: dict[str, Any], named: str) -> None:
    of = {**owner(), **broken}

    plan = planned(of)

    assert isinstance(plan.verdict, SpecInvalid)
    assert named in plan.verdict.message
    assert (plan.applies, plan.deletes) == ((), ())


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"podTemplate": {"spec": {"containers": "none"}}}, "containers"),
        ({"podTemplate": {"spec": {"containers": [{"image": "x"}]}}}, "needs name"),
        ({"gateway": {"podTemplate": {"spec": {"$patch": "bogus"}}}}, "bogus"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is_changed(spec: dict[str, Any], named: str) -> None:
    plan = planned(owner(**spec))

    assert isinstance(plan.verdict, SpecInvalid)
    assert named in plan.verdict.message
    assert plan.applies == ()


def test_a_configuration_nobody_can_read_is_a_verdict_too() -> None:
    plan = planned(fitting_owner(model={"uri": "builtin://a", "config": {"architectures": ["Nothing"]}}))

    assert isinstance(plan.verdict, SpecInvalid)
    assert "Nothing" in plan.verdict.message


def test_a_status_that_cannot_be_read_does_not_stop_the_serving() -> None:
    of = fitting_owner()
    of["status"] = {"conditions": "broken", "replicas": -1, "url": 5, "plan": {"strategy": "Bogus"}}

    assert {ref(change.manifest) for change in planned(of).applies} == ALL


def test_planning_never_changes_what_it_was_given() -> None:
    of = fitting_owner(podTemplate={"spec": {"containers": [{"name": "engine", "env": []}]}})
    children = applied(of)
    before = copy.deepcopy((of, children))

    planned(of, children)

    assert (of, children) == before
