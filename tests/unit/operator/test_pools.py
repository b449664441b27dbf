"""Two pools of engines: what is rendered, how each rolls out, and what the status says."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import PlanStatus, Status
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.conditions.status import summarize
from mamba_operator.decision.reconcile_plan import ReconcilePlan
from mamba_operator.deletion_cost import scale_downs
from mamba_operator.memory.verdict import DoesNotFit, Fits
from mamba_operator.objects.manifest import Manifest, Ref, ref
from mamba_operator.observation.snapshot import ReportedPlan
from mamba_operator.plan import make_plan
from mamba_operator.workload.measured_workload import MeasuredWorkload
from operator_objects import NOW, TOKEN, TOLD, applied, fitting_owner, owner, planned, running, snapshot

TIERS = {"hostMemory": "8Gi", "disk": {"size": "100Gi"}}
STAGING = 256 << 20


def pooled(**spec: Any) -> Manifest:
    return fitting_owner(**{"disaggregation": {}, **spec})


def child(children: list[Manifest], kind: str, name: str) -> Manifest:
    return next(each for each in children if ref(each) == Ref(kind, name))


def settings(children: list[Manifest], pool: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(child(children, "ConfigMap", f"nano-{pool}")["data"]["engine.json"])
    return document


def container(deployment: Manifest) -> dict[str, Any]:
    [engine] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(engine)


def ready(children: list[Manifest], **counts: int) -> list[Manifest]:
    """Return the children with that many ready pods by Deployment; the others have all that they want."""
    done = running(children)
    for each in done:
        if each["kind"] == "Deployment":
            suffix = each["metadata"]["name"].removeprefix("nano").removeprefix("-") or "gateway"
            each["status"]["readyReplicas"] = counts.get(suffix, each["spec"]["replicas"])
    return done


def status(of: Manifest, children: list[Manifest], plan: ReconcilePlan | None = None) -> Status:
    seen = snapshot(of, children)
    found = summarize(seen, plan or planned(of, children), (), now=NOW)
    assert found is not None
    return found


def condition(of: Status, type_: ConditionType) -> tuple[str, str, str]:
    found = find_condition(of.conditions, type_)
    assert found is not None
    return found.status, found.reason, found.message


def test_each_pool_is_a_deployment_of_its_own_role() -> None:
    children = applied(
        pooled(
            resources={"cpu": "4", "memory": "20Gi"},
            disaggregation={
                "prefill": {
                    "replicas": 2,
                    "resources": {"cpu": "8", "gpuResource": "nvidia.com/mig-3g.40gb"},
                    "stateCache": {"strategy": "NoBuffer", "minCheckpointDepth": 64},
                },
                "decode": {"replicas": 3, "stateCache": {"strategy": "ExtraBuffer", "eviction": "LRU"}},
            },
        )
    )
    deployments = {each["metadata"]["name"]: each for each in children if each["kind"] == "Deployment"}
    prefill, decode = deployments["nano-prefill"], deployments["nano-decode"]

    assert sorted(deployments) == ["nano", "nano-decode", "nano-prefill"]
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"]) == (2, 3)
    assert container(prefill)["resources"]["requests"] == {
        "cpu": "8", "memory": "20Gi", "nvidia.com/mig-3g.40gb": "1",
    }  # fmt: skip
    assert container(decode)["resources"]["requests"]["cpu"] == "4"
    for role, deployment in (("prefill", prefill), ("decode", decode)):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        selected = deployment["spec"]["selector"]["matchLabels"]
        assert selected.items() <= labels.items()
        assert selected[names.LABEL_ROLE] == role
        assert {"name": "transfer", "containerPort": 8002, "protocol": "TCP"} in container(deployment)[
            "ports"
        ]
        assert "startupProbe" in container(deployment)
        document = settings(children, role)
        assert (document["role"], document["transfer_port"], document["transfer_host"]) == (role, 8002, "::")
    assert settings(children, "prefill")["strategy"] == "NoBuffer"
    assert settings(children, "prefill")["min_checkpoint_depth"] == 64
    assert settings(children, "decode")["strategy"] == "ExtraBuffer"
    assert settings(children, "decode")["eviction"] == "LRU"


def test_both_pools_hold_states_of_one_type() -> None:
    children = applied(pooled(workload={"concurrency": 300}))

    assert settings(children, "decode")["state_dtype"] == "float16"  # only so many fit
    assert settings(children, "prefill")["state_dtype"] == "float16"


def test_engines_that_plan_for_themselves_get_one_type_of_states() -> None:
    children = applied(owner(disaggregation={}))

    assert [settings(children, pool)["state_dtype"] for pool in ("prefill", "decode")] == ["float32"] * 2


def test_one_service_has_the_engines_of_both_pools_and_only_they_read_states() -> None:
    children = applied(pooled())
    selector = child(children, "Service", "nano-engine")["spec"]["selector"]
    for pool in ("prefill", "decode"):
        deployment = child(children, "Deployment", f"nano-{pool}")
        assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    rules = child(children, "NetworkPolicy", "nano-engine")["spec"]["ingress"]
    [transfers] = [rule for rule in rules if {"protocol": "TCP", "port": "transfer"} in rule["ports"]]

    assert transfers["from"] == [{"podSelector": {"matchLabels": names.selector("nano", "engine")}}]
    assert child(children, "PodDisruptionBudget", "nano-engine")["spec"]["maxUnavailable"] == 1


def test_engines_of_both_pools_hand_states_over_by_the_transport_of_the_spec() -> None:
    by_nixl = applied(fitting_owner(resources={"gpus": 0}, disaggregation={"transport": "Nixl"}))
    by_sockets = applied(fitting_owner(resources={"gpus": 0}, disaggregation={}))
    ports = {"name": "UCX_TCP_PORT_RANGE", "value": "20000-20999"}
    for pool in ("prefill", "decode"):
        assert settings(by_nixl, pool)["transfer_transport"] == "nixl"
        assert ports in container(child(by_nixl, "Deployment", f"nano-{pool}"))["env"]
        assert "transfer_transport" not in settings(by_sockets, pool)

    def admitted(children: list[Manifest]) -> list[Any]:
        rules = child(children, "NetworkPolicy", "nano-engine")["spec"]["ingress"]
        return [port["endPort"] for rule in rules for port in rule["ports"] if "endPort" in port]

    assert (admitted(by_nixl), admitted(by_sockets)) == ([20999], [])


def test_a_profile_with_gpus_is_refused_for_states_that_travel_by_nixl() -> None:
    of = owner(resources={"profile": "nvidia-l4"}, disaggregation={"transport": "Nixl"})
    plan = planned(of, [])
    assert "Nixl is for engines without GPUs" in str(plan.verdict)
    assert not plan.applies


@pytest.mark.parametrize(
    ("spec", "least"),
    [
        ({"disaggregation": {"handOverTokens": 2000}}, 2000),
        ({"disaggregation": {}}, 512),
        ({"disaggregation": {}, "engine": {"pageSize": 100}, "stateCache": {"trackInterval": 500}}, 600),
        ({"disaggregation": {}, "engine": {"pageSize": 1000}, "stateCache": {"trackInterval": 1000}}, 2000),
    ],
)
def test_the_shortest_prompt_to_hand_over_is_that_of_the_spec_or_the_planner(
    spec: dict[str, Any], least: int
) -> None:
    of = fitting_owner(**spec)
    children = applied(of)
    [gateway] = child(children, "Deployment", "nano")["spec"]["template"]["spec"]["containers"]

    assert {"name": "MAMBASERVE_HAND_OVER_TOKENS", "value": str(least)} in gateway["env"]
    assert status(of, ready(children)).hand_over_tokens == least


def test_without_pools_nothing_is_handed_over() -> None:
    of = fitting_owner()
    children = applied(of)

    assert "HAND_OVER_TOKENS" not in json.dumps(child(children, "Deployment", "nano"))
    assert status(of, running(children)).hand_over_tokens is None


def test_a_change_of_one_pool_rolls_that_pool_alone() -> None:
    before = applied(pooled())
    of = pooled(disaggregation={"decode": {"resources": {"cpu": "8"}}})
    changed = {ref(apply.manifest) for apply in planned(of, ready(before)).applies}

    assert Ref("Deployment", "nano-decode") in changed
    assert Ref("Deployment", "nano-prefill") not in changed


def test_each_pool_is_scaled_alone_and_loses_the_engines_with_the_least_cache() -> None:
    before = applied(pooled(disaggregation={"prefill": {"replicas": 3}, "decode": {"replicas": 3}}))
    of = pooled(disaggregation={"prefill": {"replicas": 3}, "decode": {"replicas": 2}})
    pods = [pod(role, number) for role in ("prefill", "decode") for number in range(3)]
    plan = planned(of, ready(before), pods=pods)
    written = {
        apply.manifest["metadata"]["name"]: apply.manifest["spec"]["replicas"]
        for apply in plan.applies
        if apply.manifest["kind"] == "Deployment"
    }
    [decrease] = scale_downs(snapshot(of, ready(before), pods=pods), plan)

    assert written == {"nano-decode": 2}
    assert {each["metadata"]["name"] for each in decrease.pods} == {f"nano-decode-{n}" for n in range(3)}
    assert decrease.fewer == 1


def pod(role: str, number: int) -> Manifest:
    labels = {**names.labels("nano", "engine"), names.LABEL_ROLE: role}
    return {
        "kind": "Pod",
        "metadata": {"name": f"nano-{role}-{number}", "namespace": "models", "labels": labels},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def test_lower_tiers_reach_the_pod_to_the_byte() -> None:
    children = applied(fitting_owner(resources={"memory": "20Gi"}, stateCache=TIERS))
    engine = child(children, "Deployment", "nano-engine")
    requests = container(engine)["resources"]["requests"]
    volumes = {each["name"]: each for each in engine["spec"]["template"]["spec"]["volumes"]}
    document = settings(children, "engine")

    assert requests["memory"] == container(engine)["resources"]["limits"]["memory"] == "28928Mi"
    assert (28 << 30) + STAGING == 28928 << 20
    assert requests["ephemeral-storage"] == "100Gi"
    assert volumes["states"] == {"name": "states", "emptyDir": {"sizeLimit": "100Gi"}}
    assert {"name": "states", "mountPath": "/states"} in container(engine)["volumeMounts"]
    assert (document["host_memory"], document["disk_cache"]) == (8 << 30, "/states")
    assert document["disk_cache_bytes"] == (100 << 30) * 15 // 16


def test_a_storage_class_gives_each_engine_a_volume() -> None:
    disk = {"size": "100Gi", "storageClassName": "ssd"}
    children = applied(pooled(disaggregation={"decode": {"stateCache": {"disk": disk}}}))
    decode, prefill = (child(children, "Deployment", f"nano-{pool}") for pool in ("decode", "prefill"))
    volumes = {each["name"]: each for each in decode["spec"]["template"]["spec"]["volumes"]}
    claim = volumes["states"]["ephemeral"]["volumeClaimTemplate"]["spec"]

    assert claim["storageClassName"] == "ssd"
    assert claim["resources"] == {"requests": {"storage": "100Gi"}}
    assert "ephemeral-storage" not in container(decode)["resources"]["requests"]
    assert "states" not in json.dumps(prefill["spec"]["template"]["spec"]["volumes"])


def test_engines_share_a_claim_of_the_users_and_each_takes_a_folder_of_its_own() -> None:
    disk = {"size": "100Gi", "claimName": "states"}
    children = applied(fitting_owner(stateCache={"disk": disk}))
    engine = child(children, "Deployment", "nano-engine")
    volumes = {each["name"]: each for each in engine["spec"]["template"]["spec"]["volumes"]}

    assert volumes["states"]["persistentVolumeClaim"] == {"claimName": "states"}
    assert "ephemeral-storage" not in container(engine)["resources"].get("requests", {})
    assert settings(children, "engine")["disk_cache_shared"] is True


def test_the_status_has_each_pool_with_its_plan() -> None:
    of = pooled(disaggregation={"prefill": {"replicas": 2}})
    children = ready(applied(of), prefill=1)
    found = status(of, children)
    prefill, decode = found.pools

    assert (found.replicas, found.ready_replicas, found.engines) == (3, 2, "2/3")
    assert [(pool.name, pool.ready_replicas, pool.desired_replicas) for pool in found.pools] == [
        ("prefill", 1, 2),
        ("decode", 1, 1),
    ]
    assert prefill.plan is not None
    assert decode.plan is not None
    assert (prefill.plan.exported, decode.plan.receiving) != (None, None)
    assert found.plan is None
    assert condition(found, ConditionType.AVAILABLE)[0] == "True"
    assert condition(found, ConditionType.PROGRESSING)[2].startswith("prefill: ")


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("prefill", Reason.NO_READY_PREFILL_ENGINE),
        ("decode", Reason.NO_READY_DECODE_ENGINE),
    ],
)
def test_a_pool_without_a_ready_engine_is_named(missing: str, reason: Reason) -> None:
    of = pooled()
    found = status(of, ready(applied(of), **{missing: 0}))

    assert condition(found, ConditionType.AVAILABLE)[:2] == ("False", reason)
    assert missing in condition(found, ConditionType.AVAILABLE)[2]
    assert condition(found, ConditionType.READY)[0] == "False"


def test_with_both_pools_ready_the_deployment_is() -> None:
    of = pooled()
    found = status(of, ready(applied(of)))

    assert condition(found, ConditionType.READY)[:2] == ("True", Reason.SERVING)
    assert condition(found, ConditionType.UP_TO_DATE)[0] == "True"


def test_each_pool_may_have_a_profile_and_one_that_does_not_fit_is_named() -> None:
    of = fitting_owner(
        memory={},
        disaggregation={
            "prefill": {"resources": {"profile": "cpu-small"}},
            "decode": {"resources": {"profile": "nvidia-h100-80gb"}},
        },
    )
    plan = planned(of)
    found = status(of, [], plan)

    assert isinstance(plan.pools["prefill"].verdict, DoesNotFit)
    assert isinstance(plan.pools["decode"].verdict, Fits)
    assert plan.applies == ()
    assert condition(found, ConditionType.PLANNED)[2].startswith("prefill: ")


def test_plans_that_engines_report_are_shown_by_pool_and_outlive_the_operator() -> None:
    of = owner(model={"uri": "hf://org/model"}, disaggregation={})
    children = ready(applied(of))
    reports: dict[Any, ReportedPlan] = {}
    for pool, slots in (("prefill", 11), ("decode", 22)):
        template = child(children, "Deployment", f"nano-{pool}")["spec"]["template"]
        plan = PlanStatus.model_validate({**TOLD, "slots": slots}, by_alias=True, by_name=False)
        reports[pool] = ReportedPlan(template["metadata"]["labels"][names.LABEL_REVISION], plan)
    seen = snapshot(of, children, reported_by_role=reports)
    shown = summarize(seen, planned(of, children, reported_by_role=reports), (), now=NOW)
    assert shown is not None
    assert [pool.plan and pool.plan.slots for pool in shown.pools] == [11, 22]
    assert condition(shown, ConditionType.PLANNED)[1] == Reason.PLAN_REPORTED

    restarted = {**of, "status": shown.manifest()}
    again = status(restarted, children)
    assert [pool.plan and pool.plan.slots for pool in again.pools] == [11, 22]


def test_each_pool_follows_the_traffic_that_its_own_engines_measure() -> None:
    of = pooled(workload={"promptTokens": 100, "outputTokens": 100, "sharedPrefixRatio": 0.0})
    children = ready(applied(of))
    agents = MeasuredWorkload(16_000.0, 200.0, 0.9, 8.0, 900.0)
    shown = measured_status(of, children, {"decode": agents})
    prefill, decode = shown.pools

    assert shown.workload is None
    assert prefill.workload is None
    assert decode.workload is not None
    assert (decode.workload.prompt_tokens, decode.workload.shared_prefix_ratio) == (16_000, 0.9)
    assert decode.workload.proposed is not None
    assert decode.workload.proposed.strategy != decode.strategy

    # It is announced after half an hour, and running engines of that pool alone get it ten minutes later.
    when, changed = NOW, dict[str, str]()
    for _ in range(6):
        of["status"] = shown.manifest()
        when += timedelta(minutes=15)
        plan = make_plan(
            snapshot(of, children, measured_by_role={"decode": agents}), now=when, key_id="k",
            new_token=lambda: TOKEN,
        )  # fmt: skip
        changed = {
            apply.manifest["metadata"]["name"]: apply.manifest["metadata"]["annotations"].get(
                names.ANNOTATION_CHOSEN_FOR, ""
            )
            for apply in plan.applies
            if apply.manifest["kind"] == "Deployment"
        }
        if changed.get("nano-decode"):
            break
        shown = measured_status(of, children, {"decode": agents}, when)
    assert decode.workload.proposed.strategy in changed["nano-decode"]
    assert not changed.get("nano-prefill")


def measured_status(of: Manifest, children: list[Manifest], measured: Any, now: datetime = NOW) -> Status:
    seen = snapshot(of, children, measured_by_role=measured)
    plan = make_plan(seen, now=now, key_id="k", new_token=lambda: TOKEN)
    shown = summarize(seen, plan, (), now=now)
    assert shown is not None
    return shown


def test_traffic_that_unified_engines_measured_does_not_move_the_strategy_of_a_pool() -> None:
    measured = {
        "promptTokens": 100, "outputTokens": 9000, "concurrency": 900, "requests": 5000,
        "since": "2026-01-02T11:00:00Z", "time": "2026-01-02T12:00:00Z",
    }  # fmt: skip
    of = {**pooled(), "status": {"workload": measured}}
    found = status(of, ready(applied(pooled())))

    assert found.workload is None
    assert [pool.strategy for pool in found.pools] == [
        pool.strategy for pool in status(pooled(), ready(applied(pooled()))).pools
    ]


def test_a_spec_that_cannot_be_read_leaves_the_pools_in_the_status() -> None:
    children = ready(applied(pooled()))
    found = status({**pooled(), "spec": {"model": {"uri": "nowhere"}}}, children)

    assert [(pool.name, pool.ready_replicas) for pool in found.pools] == [("prefill", 1), ("decode", 1)]
    assert condition(found, ConditionType.AVAILABLE)[0] == "True"
    assert condition(found, ConditionType.DEGRADED)[:2] == ("True", Reason.INVALID_SPEC)


# --- between unified engines and two pools -------------------------------------------------------------


def deleted(plan: ReconcilePlan) -> set[Ref]:
    return {delete.ref for delete in plan.deletes}


UNIFIED = {Ref("Deployment", "nano-engine"), Ref("ConfigMap", "nano-engine")}
POOLS = {Ref(kind, f"nano-{pool}") for pool in ("prefill", "decode") for kind in ("Deployment", "ConfigMap")}


@pytest.mark.parametrize(
    ("before", "after", "old", "new"),
    [
        (fitting_owner(), pooled(), UNIFIED, "decode"),
        (pooled(), fitting_owner(), POOLS, "engine"),
    ],
    ids=["to two pools", "back"],
)
def test_old_engines_end_only_once_all_new_ones_serve(
    before: Manifest, after: Manifest, old: set[Ref], new: str
) -> None:
    children = ready(applied(before))
    first = planned(after, children)
    assert not deleted(first) & old
    assert first.requeue_after is not None

    added = [apply.manifest for apply in first.applies if ref(apply.manifest) not in set(map(ref, children))]
    both = [*children, *numbered(added)]
    assert not deleted(planned(after, ready(both, **{new: 0}))) & old
    waiting = status(after, ready(both, **{new: 0}))
    assert condition(waiting, ConditionType.AVAILABLE)[0] == "True"
    assert deleted(planned(after, ready(both))) >= old


def test_old_engines_end_sooner_where_new_ones_wait_for_their_room() -> None:
    children = ready(applied(fitting_owner()))
    after = pooled(rollout={"inPlaceAfter": "5m"})

    def waiting(minutes: int) -> Manifest:
        since = (NOW - timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")
        scheduled = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "lastTransitionTime": since,
        }  # fmt: skip
        return {**pod("decode", 0), "status": {"phase": "Pending", "conditions": [scheduled]}}

    assert not deleted(planned(after, children, pods=[waiting(4)])) & UNIFIED
    assert deleted(planned(after, children, pods=[waiting(6)])) >= UNIFIED


def numbered(manifests: list[Manifest]) -> list[Manifest]:
    for number, each in enumerate(manifests):
        each["metadata"] |= {"uid": f"new-{number}", "resourceVersion": str(900 + number), "generation": 1}
    return [each for each in manifests if each["kind"] != "Secret"]


def test_old_engines_that_answer_count_while_the_new_plan_does_not_fit() -> None:
    children = ready(applied(fitting_owner()))
    after = pooled(memory={"deviceMemory": "10Gi"})
    found = status(after, children)

    assert not planned(after, children).deletes
    assert (found.replicas, found.ready_replicas) == (1, 1)
    assert condition(found, ConditionType.AVAILABLE)[0] == "True"
    assert condition(found, ConditionType.DEGRADED)[:2] == ("True", Reason.PLAN_DOES_NOT_FIT)
