"""Conditions for every situation: a table of what is seen and what the status says."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from mamba_api import names
from mamba_api.v1alpha1 import CanaryStatus, Status
from mamba_api.v1alpha1.conditions import HARMLESS, OF_PODS, REASONS_OF, ConditionType, Reason
from mamba_operator.autoscale.decide import ScalingDecision
from mamba_operator.autoscale.demand import Demand
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_record import LatestDecision
from mamba_operator.conditions.chain import Failure
from mamba_operator.conditions.status import summarize
from mamba_operator.objects.manifest import Manifest, ref
from mamba_operator.observation.placement import Node
from mamba_operator.plan import make_plan
from mamba_operator.render.live_settings import RejectedUpdate, SettingsUpdate
from mamba_operator.rollout.adapter_outcome import AdapterOutcome, AdapterUpdate
from mamba_operator.workload.measured_workload import MeasuredWorkload
from model_configs import unserved_config
from model_loads import loaded, loading, with_status
from operator_objects import (
    NOW,
    TOKEN,
    applied,
    edited,
    fitting_owner,
    nano_config,
    owner,
    planned,
    running,
    snapshot,
    told_by_engine,
)

SUMS = (ConditionType.UP_TO_DATE, ConditionType.RECONCILING, ConditionType.STALLED, ConditionType.READY)
"""Conditions that summarise others."""


def status_of(
    of: Manifest, children: list[Manifest], failures: tuple[Failure, ...] = (), **more: Any
) -> Status:
    status = summarize(snapshot(of, children, **more), planned(of, children, **more), failures, now=NOW)
    assert status is not None
    return status


def announced() -> Status:
    """Return the status ten minutes before engines get another strategy for the traffic that they measure."""
    of = fitting_owner(memory={"deviceMemory": "40Gi"})
    shown = {
        "promptTokens": 16_000, "outputTokens": 200, "sharedPrefixRatio": 0.9, "concurrency": 8,
        "requests": 900, "since": "2026-01-02T11:00:00Z", "time": "2026-01-02T11:00:00Z",
        "proposed": {"strategy": "ExtraBufferLazy", "gain": "27%", "since": "2026-01-02T11:30:00Z"},
    }  # fmt: skip
    seen = snapshot(
        {**of, "status": {"workload": shown}}, running(applied(of)),
        measured=MeasuredWorkload(16_000.0, 200.0, 0.9, 8.0, 900.0),
    )  # fmt: skip
    plan = make_plan(seen, now=NOW, new_token=lambda: TOKEN, key_id="a")
    status = summarize(seen, plan, (), now=NOW)
    assert status is not None
    return status


def told(*, answers: bool) -> Status:
    """Return the status while an engine has not taken over its new settings."""
    children = running(applied(OF))
    tune = SettingsUpdate("nano-engine-1", "run", "10.0.0.1", "hash", {"strategy": "NoBuffer"})
    plan = replace(
        planned(OF, children),
        settings_updates=(tune,),
        rejected_updates=(RejectedUpdate(tune, "needs 12 slots", final=answers),),
    )
    status = summarize(snapshot(OF, children), plan, (), now=NOW)
    assert status is not None
    return status


def given_adapters(outcome: AdapterOutcome | None) -> Status:
    """Return the status while an engine is given other adapters; None = it has not answered yet."""
    children = running(applied(OF))
    update = AdapterUpdate("nano-engine-1", "run", "10.0.0.1", "hash", {"sql": "hf://org/sql"})
    outcomes = {"run": outcome} if outcome is not None else {}
    plan = replace(planned(OF, children), adapter_updates=(update,))
    status = summarize(snapshot(OF, children, adapter_outcomes=outcomes), plan, (), now=NOW)
    assert status is not None
    return status


def queued() -> Status:
    """Return the status while a roll-out without a user's change waits for others."""
    children = running(applied(OF))
    plan = replace(planned(OF, children), queued=True)
    status = summarize(snapshot(OF, children), plan, (), now=NOW)
    assert status is not None
    return status


def trying(phase: Literal["Running", "Waiting"], step: int = 1) -> Status:
    """Return the status while a candidate serves beside the engines, or at step 0 answers copies."""
    children = running(applied(OF))
    share = {"weight": 5} if step else {"shadow": 5}
    canary = CanaryStatus(revision="new", stable_revision="old", phase=phase, step=step, steps=2, **share)
    plan = replace(planned(OF, children), canary=canary)
    status = summarize(snapshot(OF, children), plan, (), now=NOW)
    assert status is not None
    return status


def words(status: Status) -> dict[str, tuple[str, str]]:
    return {one.type: (one.status, one.reason) for one in status.conditions}


def pod(
    name: str = "nano-engine-1", component: str = "engine", *, phase: str = "Running", **more: Any
) -> Manifest:
    status = {"phase": phase, **more}
    meta = {"name": name, "labels": {"app.kubernetes.io/component": component}}
    return {"kind": "Pod", "metadata": meta, "status": status}


def evicted(name: str) -> Manifest:
    return pod(name, phase="Failed", reason="Evicted", startTime="2026-01-02T11:59:00Z")


def state(**container: Any) -> Manifest:
    return pod(containerStatuses=[{"name": "engine", **container}])


def stuck(which: str) -> Callable[[Manifest], None]:
    def edit(deployment: Manifest) -> None:
        deployment["status"]["conditions"] = [
            {
                "type": "Progressing",
                "status": "False",
                "reason": "ProgressDeadlineExceeded",
                "message": f"{which} is stuck",
            }
        ]

    return edit


OF = fitting_owner()
OPEN = fitting_owner(memory={})
BIG, SMALL = ((Node({"nvidia.com/gpu.memory": mib}),) for mib in ("81559", "46068"))
POOLED = fitting_owner(gateway={"inferencePool": {"proxyNamespace": "envoy"}})
UNSERVED = {"uri": "hf://a/falcon", "config": unserved_config()}
HELD = fitting_owner(rollout={"pause": True})
IDLE = fitting_owner(scaling={"minReplicas": 0})
THREE = fitting_owner(replicas=3)
MANY = fitting_owner(replicas=5, scaling={"minReplicas": 3})

SPARING = fitting_owner(replicas=3, rollout={"maxSurge": 0, "maxUnavailable": 1})
NO_NODE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
SURGE = pod("nano-engine-2", phase="Pending", conditions=[NO_NODE])
CACHED, OTHER_CACHE = (
    fitting_owner(
        model={"uri": "hf://a/nano", "config": nano_config(), "cache": {"size": "40Gi", "accessMode": mode}}
    )
    for mode in ("ReadWriteMany", "ReadWriteOnce")
)
INDEXED = fitting_owner(prefixIndex={"redis": {"url": "redis://redis:6379"}})


def missing_redis(children: list[Manifest]) -> list[Manifest]:
    said = {names.INDEX_TROUBLE_KEY: f"{NOW.isoformat()} a gateway cannot use Redis: refused"}
    return edited(children, "ConfigMap", "nano-wake", lambda one: one.update(data=said))


def deployment_status(children: list[Manifest], name: str, **status: Any) -> list[Manifest]:
    return edited(children, "Deployment", name, lambda one: one.setdefault("status", {}).update(status))


NEXT = fitting_owner(engine={"image": "registry.test/engine:next"})


def rolled_back() -> list[Manifest]:
    """Return the children after a revision got stuck and its pods have been rolled back."""
    before = running(applied(OF))
    record = [one.manifest for one in planned(OF, before).applies]
    after = edited(running(applied(NEXT)), "Deployment", "nano-engine", stuck("engine"))
    taken = [one.manifest for one in planned(NEXT, [*after, *record]).applies]
    kept = [one for one in after if ref(one) not in set(map(ref, taken))]
    return running([*kept, *record, *taken])


POOLS = fitting_owner(disaggregation={})


def without_ready(name: str) -> list[Manifest]:
    """Return the children of two pools of which one has no ready engine."""
    return edited(
        running(applied(POOLS)), "Deployment", name, lambda one: one["status"].update(readyReplicas=0)
    )


TABLE: list[tuple[str, Status, dict[str, tuple[str, str]]]] = [
    ("nothing exists yet", status_of(OF, []), {
        "Planned": ("True", "PlanComputed"), "Available": ("False", "NoReadyReplica"),
        "Progressing": ("True", "RollingOut"), "Degraded": ("False", "AsExpected"),
        "Ready": ("False", "RollingOut")}),
    ("children exist, no pod is ready", status_of(OF, running(applied(OF), engines=0, gateways=0)), {
        "Available": ("False", "NoReadyReplica"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("False", "ScalingUp")}),
    ("an engine loads", status_of(OF, running(applied(OF), engines=0), pods=(pod(),)), {
        "Progressing": ("True", "LoadingModel"), "Ready": ("False", "LoadingModel")}),
    ("all is well", status_of(OF, running(applied(OF))), {
        "Planned": ("True", "PlanComputed"), "Available": ("True", "ReplicasAvailable"),
        "Progressing": ("False", "UpToDate"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("True", "UpToDate"), "Ready": ("True", "Serving")}),
    ("no engine computes prompts", status_of(POOLS, without_ready("nano-prefill")), {
        "Available": ("False", "NoReadyPrefillEngine"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("False", "ScalingUp")}),
    ("no engine writes answers", status_of(POOLS, without_ready("nano-decode")), {
        "Available": ("False", "NoReadyDecodeEngine"), "Ready": ("False", "ScalingUp")}),
    ("two pools answer", status_of(POOLS, running(applied(POOLS))), {
        "Planned": ("True", "PlanComputed"), "Available": ("True", "ReplicasAvailable"),
        "Progressing": ("False", "UpToDate"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("True", "UpToDate"), "Ready": ("True", "Serving")}),
    ("fewer engines answer than the minimum", status_of(MANY, running(applied(MANY), engines=1)), {
        "Available": ("False", "BelowMinimum"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("False", "ScalingUp")}),
    ("the minimum answers and more are to come", status_of(MANY, running(applied(MANY), engines=3)), {
        "Available": ("True", "ReplicasAvailable"), "Ready": ("True", "Serving")}),
    ("engines without a gateway", status_of(OF, running(applied(OF), gateways=0)), {
        "Available": ("False", "GatewayNotReady"), "Progressing": ("True", "RollingOut"),
        "Ready": ("False", "RollingOut")}),
    ("a roll-out that waits for a person", status_of(HELD, deployment_status(
        running(applied(HELD)), "nano-engine", replicas=1, updatedReplicas=0)), {
        "Progressing": ("False", "RolloutPaused"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("False", "RolloutPaused"), "Ready": ("True", "Serving")}),
    ("a candidate serves beside the engines", trying("Running"), {
        "Progressing": ("True", "CanaryRunning"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("False", "CanaryRunning"), "Ready": ("True", "Serving")}),
    ("a candidate answers copies of requests", trying("Running", 0), {
        "Progressing": ("True", "CanaryRunning"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("False", "CanaryRunning"), "Ready": ("True", "Serving")}),
    ("a candidate waits for a person", trying("Waiting"), {
        "Progressing": ("False", "CanaryWaits"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("False", "CanaryWaits"), "Ready": ("True", "Serving")}),
    ("a revision that failed was taken back", status_of(NEXT, rolled_back()), {
        "Progressing": ("False", "RolledBack"), "Degraded": ("True", "RolledBack"),
        "UpToDate": ("False", "RolledBack"), "Ready": ("True", "Serving")}),
    ("a paused roll-out without anything to do", status_of(HELD, running(applied(HELD))), {
        "Progressing": ("False", "UpToDate"), "UpToDate": ("True", "UpToDate")}),
    ("one of three engines", status_of(THREE, running(applied(THREE), engines=1)), {
        "Available": ("True", "ReplicasAvailable"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("True", "Serving")}),
    ("the controller has not seen the newest spec", status_of(OF, edited(
        running(applied(OF)), "Deployment", "nano-engine", lambda d: d["metadata"].update(generation=2))), {
        "Progressing": ("True", "RollingOut"), "Ready": ("True", "Serving")}),
    ("half of the pods are new", status_of(THREE, deployment_status(
        running(applied(THREE), engines=3), "nano-engine", updatedReplicas=1)), {
        "Progressing": ("True", "RollingOut")}),
    ("more pods than wanted", status_of(OF, deployment_status(
        running(applied(OF)), "nano-engine", replicas=2, updatedReplicas=2)), {
        "Progressing": ("True", "ScalingDown")}),
    ("the old engine runs until the new one is ready", status_of(OF, deployment_status(
        running(applied(OF)), "nano-engine", replicas=2, updatedReplicas=1)), {
        "Progressing": ("True", "RollingOut"), "Ready": ("True", "Serving")}),
    ("more pods than wanted, all new and too few of them ready: no smaller scale, the old ones just went",
     status_of(THREE, deployment_status(
        running(applied(THREE), engines=2), "nano-engine", replicas=4, updatedReplicas=4)), {
        "Progressing": ("True", "RollingOut")}),
    ("no model that an engine serves", status_of(fitting_owner(model=UNSERVED), []), {
        "Planned": ("False", "ModelNotServed"), "Available": ("False", "ModelNotServed"),
        "Progressing": ("False", "ModelNotServed"), "Degraded": ("True", "ModelNotServed"),
        "Ready": ("False", "ModelNotServed")}),
    ("an engine drains", status_of(OF, running(applied(OF)), pods=(
        {**pod(), "metadata": {**pod()["metadata"], "deletionTimestamp": "2026-01-02T11:59:00Z"}},)), {
        "Progressing": ("True", "Draining"), "Ready": ("True", "Serving")}),
    ("an InferencePool where there is no such kind", status_of(
        POOLED, running(applied(POOLED)), not_served={"InferencePool": "the cluster has no such kind"}), {
        "Available": ("True", "ReplicasAvailable"), "Degraded": ("True", "KindNotServed"),
        "Ready": ("False", "KindNotServed")}),
    ("the kind of what nobody asks for is not there", status_of(
        OF, running(applied(OF)), not_served={"InferencePool": "the cluster has no such kind"}), {
        "Degraded": ("False", "AsExpected"), "Ready": ("True", "Serving")}),
    ("the roll-out is stuck", status_of(OF, edited(
        running(applied(OF), engines=0), "Deployment", "nano-engine", stuck("engine"))), {
        "Progressing": ("False", "ProgressDeadlineExceeded"),
        "Degraded": ("True", "ProgressDeadlineExceeded"), "Ready": ("False", "ProgressDeadlineExceeded")}),
    ("scaled to zero", status_of(IDLE, running(applied(IDLE), engines=0)), {
        "Available": ("True", "ScaledToZero"), "Progressing": ("False", "UpToDate"),
        "Ready": ("True", "ScaledToZero")}),
    ("scaled to zero with no gateway", status_of(IDLE, running(applied(IDLE), engines=0, gateways=0)), {
        "Available": ("False", "GatewayNotReady"), "Ready": ("False", "RollingOut")}),
    ("the model is unknown", status_of(owner(), running(applied(owner()))), {
        "Planned": ("Unknown", "ModelUnknown"), "Ready": ("True", "Serving")}),
    ("the model is unknown, and an engine tells its plan", status_of(
        owner(), running(applied(owner())), reported=told_by_engine(applied(owner()))), {
        "Planned": ("True", "PlanReported"), "Ready": ("True", "Serving")}),
    ("the nodes have other GPUs than those it was planned for", status_of(
        OPEN, running(applied(OPEN, nodes=BIG)), nodes=SMALL), {
        "Planned": ("True", "PlanDiffers"), "Degraded": ("False", "AsExpected"),
        "Progressing": ("False", "UpToDate"), "Ready": ("True", "Serving")}),
    ("another strategy was announced for the measured traffic", announced(), {
        "Planned": ("True", "StrategyAnnounced"), "Degraded": ("False", "AsExpected")}),
    ("the GPU is unknown", status_of(fitting_owner(memory={}), []), {
        "Planned": ("Unknown", "DeviceMemoryUnknown"), "Progressing": ("True", "RollingOut")}),
    ("it does not fit", status_of(fitting_owner(memory={"deviceMemory": "16Gi"}), []), {
        "Planned": ("False", "PlanDoesNotFit"), "Available": ("False", "PlanDoesNotFit"),
        "Progressing": ("False", "PlanDoesNotFit"), "Degraded": ("True", "PlanDoesNotFit"),
        "Ready": ("False", "PlanDoesNotFit")}),
    ("it does not fit any more and the old engines serve", status_of(
        fitting_owner(memory={"deviceMemory": "16Gi"}), running(applied(OF))), {
        "Planned": ("False", "PlanDoesNotFit"), "Available": ("True", "ReplicasAvailable"),
        "Ready": ("False", "PlanDoesNotFit")}),
    ("the spec is broken", status_of({**owner(), "spec": {}}, []), {
        "Planned": ("False", "InvalidSpec"), "Available": ("False", "InvalidSpec"),
        "Progressing": ("False", "InvalidSpec"), "Degraded": ("True", "InvalidSpec"),
        "Ready": ("False", "InvalidSpec")}),
    ("plan mode", status_of(fitting_owner(mode="Plan"), []), {
        "Planned": ("True", "PlanComputed"), "Available": ("False", "PlanMode"),
        "Progressing": ("False", "PlanMode"), "Degraded": ("False", "AsExpected"),
        "Ready": ("False", "PlanMode")}),
    ("the API server refused two children", status_of(OF, running(applied(OF)), (
        Failure(Reason.APPLY_FAILED, "no"), Failure(Reason.APPLY_FAILED, "neither"))), {
        "Degraded": ("True", "ApplyFailed"), "Ready": ("False", "ApplyFailed"),
        "Available": ("True", "ReplicasAvailable")}),
    ("the cluster has no volumes of images", status_of(OF, running(applied(OF)), (
        Failure(Reason.IMAGE_VOLUMES_NOT_SERVED, "no"),)), {
        "Degraded": ("True", "ImageVolumesNotServed"), "Ready": ("False", "ImageVolumesNotServed")}),
    ("the operator may not write a child", status_of(OF, running(applied(OF)), (
        Failure(Reason.FORBIDDEN, "no"),)), {
        "Degraded": ("True", "Forbidden"), "Ready": ("False", "Forbidden")}),
    ("an image cannot be pulled", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),)), {
        "Degraded": ("True", "ImagePullFailed"), "Ready": ("False", "ImagePullFailed")}),
    ("an engine crashes", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "CrashLoopBackOff"}},
              lastState={"terminated": {"exitCode": 1, "message": "no such file"}}, restartCount=4),)), {
        "Degraded": ("True", "EngineCrashing")}),
    ("gateways miss the Redis of the index", status_of(INDEXED, missing_redis(running(applied(INDEXED)))), {
        "Available": ("True", "ReplicasAvailable"), "Degraded": ("True", "PrefixIndexUnavailable"),
        "Ready": ("True", "Serving")}),
    ("an engine runs out of memory", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "CrashLoopBackOff"}},
              lastState={"terminated": {"reason": "OOMKilled", "exitCode": 137}}, restartCount=1),)), {
        "Degraded": ("True", "OutOfMemory")}),
    ("the weights are not there", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "CrashLoopBackOff"}},
              lastState={"terminated": {"exitCode": 2, "message": "no such folder"}}, restartCount=4),)), {
        "Degraded": ("True", "ModelNotLoaded"), "Ready": ("False", "ModelNotLoaded")}),
    ("an adapter cannot be read", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "CrashLoopBackOff"}},
              lastState={"terminated": {"exitCode": 2, "message": "adapter sql: no such folder"}},
              restartCount=4),)), {
        "Degraded": ("True", "AdapterNotLoaded"), "Ready": ("False", "AdapterNotLoaded")}),
    ("a gateway crashes", status_of(OF, running(applied(OF), gateways=0), pods=(
        {**state(state={"waiting": {"reason": "CrashLoopBackOff"}}), "metadata": {"name": "nano-1"}},)), {
        "Degraded": ("True", "GatewayCrashing"), "Ready": ("False", "GatewayCrashing")}),
    ("a Secret is not there", status_of(OF, running(applied(OF), engines=0), pods=(
        state(state={"waiting": {"reason": "CreateContainerConfigError", "message": "no secret hub"}}),)), {
        "Degraded": ("True", "ContainerNotCreated"), "Ready": ("False", "ContainerNotCreated")}),
    ("a volume is not mounted", status_of(OF, running(applied(OF), engines=0), pods=(
        pod(phase="Pending", conditions=[{"type": "PodReadyToStartContainers", "status": "False",
                                          "lastTransitionTime": "2026-01-02T11:00:00Z"}]),)), {
        "Degraded": ("True", "VolumesNotMounted"), "Ready": ("False", "VolumesNotMounted")}),
    ("a quota keeps pods from being made", status_of(OF, deployment_status(
        running(applied(OF), engines=0), "nano-engine", conditions=[
            {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}])), {
        "Degraded": ("True", "PodsRefused"), "Ready": ("False", "PodsRefused")}),
    ("a pod that a roll-out adds finds no node while the old one serves", status_of(OF, deployment_status(
        running(applied(OF)), "nano-engine", replicas=2, updatedReplicas=1), pods=(SURGE,)), {
        "Available": ("True", "ReplicasAvailable"), "Progressing": ("True", "RollingOut"),
        "Degraded": ("True", "Unschedulable"), "UpToDate": ("False", "RollingOut"),
        "Ready": ("True", "Serving")}),
    ("one of three may be missing during a roll-out", status_of(SPARING, deployment_status(
        running(applied(SPARING), engines=2), "nano-engine", replicas=3, updatedReplicas=1), pods=(SURGE,)), {
        "Degraded": ("True", "Unschedulable"), "Ready": ("True", "Serving")}),
    ("two of three are missing during a roll-out", status_of(SPARING, deployment_status(
        running(applied(SPARING), engines=1), "nano-engine", replicas=3, updatedReplicas=1), pods=(SURGE,)), {
        "Degraded": ("True", "Unschedulable"), "Ready": ("False", "Unschedulable")}),
    ("a roll-out is stuck and the old pods serve", status_of(OF, edited(deployment_status(
        running(applied(OF)), "nano-engine", replicas=2, updatedReplicas=1),
        "Deployment", "nano-engine", stuck("engine"))), {
        "Degraded": ("True", "ProgressDeadlineExceeded"), "UpToDate": ("False", "ProgressDeadlineExceeded"),
        "Ready": ("True", "Serving")}),
    ("a change was just written while the old pods serve", status_of(
        fitting_owner(engine={"image": "registry.test/engine:2"}), running(applied(OF))), {
        "UpToDate": ("False", "RollingOut"), "Ready": ("True", "Serving")}),
    ("a change of no pod was just written", status_of(OF, edited(
        running(applied(OF)), "Service", "nano", lambda one: one["spec"].update(ports=[]))), {
        "Progressing": ("False", "UpToDate"), "UpToDate": ("False", "RollingOut"),
        "Ready": ("True", "Serving")}),
    ("an engine is told another strategy and does not answer yet", told(answers=False), {
        "Progressing": ("True", "SwitchingStrategy"), "Degraded": ("False", "AsExpected"),
        "UpToDate": ("False", "SwitchingStrategy"), "Ready": ("True", "Serving")}),
    ("an engine refuses another strategy", told(answers=True), {
        "Progressing": ("True", "SwitchingStrategy"), "Degraded": ("True", "StrategyRefused"),
        "UpToDate": ("False", "SwitchingStrategy"), "Ready": ("True", "Serving")}),
    *((f"an engine {words}", given_adapters(outcome), {
        "Progressing": ("True", "SwitchingAdapters"), "UpToDate": ("False", "SwitchingAdapters"),
        "Degraded": degraded, "Ready": ("True", "Serving")}) for words, outcome, degraded in (
            ("loads adapters", None, ("False", "AsExpected")),
            ("serves adapters that are not written yet", AdapterOutcome("hash"), ("False", "AsExpected")),
            ("was given other adapters", AdapterOutcome("old", "no", True), ("False", "AsExpected")),
            ("has no place yet", AdapterOutcome("hash", "no place"), ("False", "AsExpected")),
            ("refuses an adapter", AdapterOutcome("hash", "no", True), ("True", "AdapterNotLoaded")))),
    ("the node of an engine is gone", status_of(OF, running(applied(OF), engines=0), pods=(
        pod(conditions=[{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]),
    )), {
        "Degraded": ("True", "NodeLost"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("False", "NodeLost")}),
    ("nodes evict engines one after the other", status_of(OF, running(applied(OF), engines=0), pods=(
        pod(phase="Pending"), evicted("a"), evicted("b"))), {
        "Degraded": ("True", "PodsFailed"), "Progressing": ("True", "ScalingUp"),
        "Ready": ("False", "PodsFailed")}),
    ("a claim has no volume", status_of(OF, running(applied(OF), engines=0), pods=(
        pod(phase="Pending", conditions=[{**NO_NODE, "message": 'persistentvolumeclaim "a" not found'}]),)), {
        "Degraded": ("True", "ClaimNotBound"), "Ready": ("False", "ClaimNotBound")}),
    ("the model is downloaded to the cache", status_of(CACHED, loading(CACHED)), {
        "Available": ("False", "NoReadyReplica"), "Progressing": ("True", "DownloadingModel"),
        "Degraded": ("False", "AsExpected"), "UpToDate": ("False", "DownloadingModel"),
        "Ready": ("False", "DownloadingModel")}),
    ("the model cannot be downloaded", status_of(CACHED, with_status(loading(CACHED), "Failed")), {
        "Progressing": ("False", "DownloadFailed"), "Degraded": ("True", "DownloadFailed"),
        "Ready": ("False", "DownloadFailed")}),
    ("the claim of the cache cannot be made another", status_of(OTHER_CACHE, running(loaded(CACHED))), {
        "Degraded": ("True", "CacheKept"), "Ready": ("True", "Serving")}),
    ("others are replaced first", queued(), {
        "Progressing": ("True", "RolloutQueued"), "UpToDate": ("False", "RolloutQueued"),
        "Ready": ("True", "Serving")}),
    ("gateways have been silent", status_of(OF, running(applied(OF)), latest_decision=LatestDecision(
        1, 1, ScalingDecision(target=1, reason="", binding="data", blind="gateway-1 is silent",
                              demand=Demand(), memory=AutoscalerMemory()), "")), {
        "Degraded": ("True", "MetricsMissing"), "Ready": ("True", "Serving")}),
    ("no node takes the pod", status_of(OF, running(applied(OF), engines=0), pods=(
        pod(phase="Pending", conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3"}]),)), {
        "Degraded": ("True", "Unschedulable"), "Progressing": ("True", "ScalingUp")}),
]  # fmt: skip


@pytest.mark.parametrize(("status", "expected"), [one[1:] for one in TABLE], ids=[one[0] for one in TABLE])
def test_the_conditions_say(status: Status, expected: dict[str, tuple[str, str]]) -> None:
    found = words(status)

    assert {name: found[name] for name in expected} == expected


def test_every_status_has_all_conditions_with_ready_last_and_reasons_that_belong() -> None:
    for situation, status, _ in TABLE:
        assert [one.type for one in status.conditions] == [one.value for one in ConditionType], situation
        for one in status.conditions:
            assert Reason(one.reason) in REASONS_OF[ConditionType(one.type)], situation
            assert one.message, situation
            assert one.observed_generation == status.observed_generation, situation


def test_ready_never_hides_a_fault() -> None:
    for situation, status, _ in TABLE:
        found = words(status)
        if found["Ready"][0] == "True":
            assert found["Available"][0] == "True", situation
            assert found["Degraded"][0] == "False" or found["Degraded"][1] in HARMLESS | OF_PODS, situation
            assert found["Planned"][0] != "False", situation


def kstatus(status: Status, generation: int) -> str:
    """Return the verdict of kstatus for the object.

    Flux and others follow its public rules, which use three types and the generation alone.
    """
    found = words(status)
    if status.observed_generation != generation or found["Reconciling"][0] == "True":
        return "InProgress"
    if found["Stalled"][0] == "True":
        return "Failed"
    return "Current" if found["Ready"][0] == "True" else "InProgress"


@pytest.mark.parametrize(
    ("situation", "read"),
    [
        ("all is well", "Current"),
        ("scaled to zero", "Current"),
        ("gateways miss the Redis of the index", "Current"),
        ("a roll-out that waits for a person", "Current"),
        ("a candidate waits for a person", "Current"),
        ("a candidate serves beside the engines", "InProgress"),
        ("nothing exists yet", "InProgress"),
        ("an engine loads", "InProgress"),
        # Ready is true meanwhile, and says nothing of the spec.
        ("half of the pods are new", "InProgress"),
        ("an engine drains", "InProgress"),
        # It may pass by itself: a node is added, an image is pushed.
        ("no node takes the pod", "InProgress"),
        ("an image cannot be pulled", "InProgress"),
        ("the API server refused two children", "InProgress"),
        ("it does not fit", "Failed"),
        ("it does not fit any more and the old engines serve", "Failed"),
        ("the spec is broken", "Failed"),
        ("a roll-out is stuck and the old pods serve", "Failed"),
        ("a revision that failed was taken back", "Failed"),
        ("the model cannot be downloaded", "Failed"),
    ],
)
def test_tools_that_go_by_kstatus_read_whether_the_spec_is_what_runs(situation: str, read: str) -> None:
    [status] = [one for name, one, _ in TABLE if name == situation]
    generation = status.observed_generation or 0

    assert kstatus(status, generation) == read
    assert kstatus(status, generation + 1) == "InProgress", "nobody has looked at that one yet"


@pytest.mark.parametrize("type_", [one for one in ConditionType if one not in SUMS])
def test_every_reason_a_condition_may_carry_is_one_that_some_situation_produces(type_: ConditionType) -> None:
    produced = {one.reason for _, status, _ in TABLE for one in status.conditions if one.type == type_}

    assert produced == {reason.value for reason in REASONS_OF[type_]}


def test_every_reason_there_is_is_produced() -> None:
    produced = {one.reason for _, status, _ in TABLE for one in status.conditions}

    assert produced == {reason.value for reason in Reason}


def test_the_counts_the_selector_and_the_address_are_those_of_the_engines() -> None:
    status = status_of(THREE, running(applied(THREE), engines=2))

    assert (status.replicas, status.ready_replicas) == (3, 2)
    assert status.selector.split(",") == [
        "app.kubernetes.io/component=engine", "app.kubernetes.io/instance=nano",
        "app.kubernetes.io/name=mambaserve",
    ]  # fmt: skip
    assert status.url == "http://nano.models.svc/v1"
    assert status.observed_generation == 3
    assert status.plan is not None


def test_a_condition_keeps_its_date_until_its_status_flips() -> None:
    first = status_of(OF, [])
    later = fitting_owner()
    later["status"] = first.manifest()
    after = NOW + timedelta(hours=1)
    children = running(applied(OF))

    second = summarize(snapshot(later, children), planned(later, children), (), now=after)

    assert second is not None
    dates = {one.type: one.last_transition_time for one in second.conditions}
    assert dates["Planned"] == "2026-01-02T12:00:00Z"
    assert dates["Ready"] == "2026-01-02T13:00:00Z"


def test_the_same_situation_gives_the_same_status_so_that_no_write_is_needed() -> None:
    children = running(applied(OF))
    again = fitting_owner()
    again["status"] = status_of(OF, children).manifest()

    status = summarize(snapshot(again, children), planned(again, children), (), now=NOW + timedelta(days=1))

    assert status is not None
    assert status.manifest() == again["status"]


def test_an_object_that_is_gone_has_no_status() -> None:
    assert summarize(snapshot(None), planned(None), (), now=NOW) is None


def test_fields_that_an_older_operator_recorded_are_dropped() -> None:
    of = fitting_owner()
    of["status"] = {"epoch": 4, "scaling": {"desired": 1, "reason": "quiet", "inputs": {}, "history": []}}

    assert not {"epoch", "scaling"} & status_of(of, []).manifest().keys()


def test_messages_name_the_pod_and_its_last_words() -> None:
    crash = state(
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"exitCode": 2, "message": "no such file"}},
        restartCount=4,
    )
    status = status_of(OF, running(applied(OF), engines=0), pods=(crash,))

    [degraded] = [one for one in status.conditions if one.type == "Degraded"]
    assert "nano-engine-1" in degraded.message
    assert "exit code 2: no such file" in degraded.message
