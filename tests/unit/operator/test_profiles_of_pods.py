"""`spec.resources.profile` in the operator: what engines ask for, what is said, what is left alone."""

from typing import Any

from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_api.v1alpha1.profiles import Profiles, ResourceProfile
from mamba_operator.children.child_comparison import Change
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.memory.verdict import Fits, SpecInvalid
from mamba_operator.objects.manifest import Manifest
from mamba_operator.plan import make_plan
from mamba_planner.cards.shipped_profiles import SHIPPED
from operator_objects import NOW, TOKEN, nano_config, owner, snapshot

MODEL = {"uri": "pvc://models/nano", "config": nano_config()}


def named(profile: str, **spec: Any) -> Manifest:
    return owner(model=MODEL, resources={"profile": profile}, **spec)


def seen(of: Manifest, profiles: Profiles, children: list[Manifest] | None = None) -> ReconcilePlan:
    return make_plan(snapshot(of, children or []), now=NOW, new_token=lambda: TOKEN, profiles=profiles)


def children(of: Manifest, profiles: Profiles) -> list[Manifest]:
    made = [one.manifest for one in seen(of, profiles).applies]
    return [
        {**one, "metadata": {**one["metadata"], "uid": str(at), "resourceVersion": "1"}}
        for at, one in enumerate(made)
    ]


def engine(plan: ReconcilePlan) -> dict[str, Any]:
    made = {(one.manifest["kind"], one.manifest["metadata"]["name"]): one.manifest for one in plan.applies}
    pod: dict[str, Any] = made["Deployment", "nano-engine"]["spec"]["template"]["spec"]
    return pod


def finding(of: Manifest, plan: ReconcilePlan) -> tuple[str, str, str]:
    status = summarize(snapshot(of), plan, (), now=NOW)
    assert status is not None
    condition = find_condition(status.conditions, ConditionType.PLANNED)
    assert condition is not None
    return condition.status, condition.reason, condition.message


def test_engines_ask_for_what_the_profile_says() -> None:
    pod = engine(seen(named("nvidia-h100-80gb"), SHIPPED))

    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "1"},
    }


def test_a_profile_without_gpus_asks_for_none() -> None:
    pod = engine(seen(owner(resources={"profile": "cpu-small"}), SHIPPED))

    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["requests"]
    assert "tolerations" not in pod


def test_the_plan_is_known_before_a_node_is_seen_and_the_condition_tells_what_came_of_the_profile() -> None:
    of = named("nvidia-h100-80gb")
    plan = seen(of, SHIPPED)

    assert isinstance(plan.verdict, Fits)
    status, reason, message = finding(of, plan)
    assert (status, reason) == ("True", Reason.PLAN_COMPUTED)
    assert "profile nvidia-h100-80gb: gpus 1" in message
    assert "deviceMemory 81559Mi" in message


def test_a_profile_that_is_not_there_is_said_and_what_serves_is_left_alone() -> None:
    mine = {"mine": SHIPPED["nvidia-h100-80gb"]}
    of = named("mine")
    served = children(of, {**SHIPPED, **mine})

    plan = seen(of, SHIPPED, served)

    assert isinstance(plan.verdict, SpecInvalid)
    assert (plan.applies, plan.deletes, plan.replicas) == ((), (), None)
    status, reason, message = finding(of, plan)
    assert (status, reason) == ("False", Reason.INVALID_SPEC)
    assert "spec.resources.profile" in message
    for name in SHIPPED:
        assert name in message


def test_a_profile_that_changes_replaces_the_engines_and_nothing_else() -> None:
    of = named("mine")
    before = {"mine": ResourceProfile.model_validate({"memory": "64Gi", "deviceMemory": "80Gi"})}
    after = {"mine": ResourceProfile.model_validate({"memory": "32Gi", "deviceMemory": "80Gi"})}
    served = children(of, before)

    assert [one for one in seen(of, before, served).applies if one.change is not Change.RECORDED] == []
    changed = [one for one in seen(of, after, served).applies if one.change is not Change.RECORDED]
    assert [(one.manifest["kind"], one.manifest["metadata"]["name"]) for one in changed] == [
        ("Deployment", "nano-engine")
    ]


def test_the_same_words_in_a_profile_and_in_the_object_make_the_same_pods() -> None:
    said = {"gpus": 1, "cpu": "8", "memory": "64Gi"}
    profile = {"mine": ResourceProfile.model_validate({**said, "nodeSelector": {"a": "b"}})}

    by_profile = engine(seen(named("mine"), profile))

    plain = owner(model=MODEL, resources=said, scheduling={"nodeSelector": {"a": "b"}})
    assert by_profile == engine(seen(plain, {}))


def test_an_object_that_breaks_a_rule_with_its_profile_is_invalid() -> None:
    of = owner(engine={"quantization": "int8"}, resources={"profile": "nvidia-l4"})

    _, reason, message = finding(of, seen(of, SHIPPED))

    assert reason == Reason.INVALID_SPEC
    assert "quantization int8" in message
