"""Conditions of a MambaDeployment: the types, every reason with its meaning, and the one way to set one.

The operator's pure `status` module calls `set_condition`; events use the same reason words. No clock: the
caller passes the time.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1.status import Condition

ConditionStatus = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 4096
"""Longest message the CRD accepts."""


class ConditionType(StrEnum):
    """In the order they are shown; Ready sums up the others and is computed last."""

    PLANNED = "Planned"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    UP_TO_DATE = "UpToDate"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    READY = "Ready"


class Reason(StrEnum):
    """Why a condition has its status. `REASONS` says what each means and what to do."""

    PLAN_COMPUTED = "PlanComputed"
    PLAN_REPORTED = "PlanReported"
    PLAN_DIFFERS = "PlanDiffers"
    STRATEGY_ANNOUNCED = "StrategyAnnounced"
    PLAN_DOES_NOT_FIT = "PlanDoesNotFit"
    MODEL_NOT_SERVED = "ModelNotServed"
    MODEL_UNKNOWN = "ModelUnknown"
    DEVICE_MEMORY_UNKNOWN = "DeviceMemoryUnknown"
    INVALID_SPEC = "InvalidSpec"
    REPLICAS_AVAILABLE = "ReplicasAvailable"
    NO_READY_REPLICA = "NoReadyReplica"
    BELOW_MINIMUM = "BelowMinimum"
    SCALED_TO_ZERO = "ScaledToZero"
    PLAN_MODE = "PlanMode"
    UP_TO_DATE = "UpToDate"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROLLOUT_QUEUED = "RolloutQueued"
    ROLLED_BACK = "RolledBack"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    DRAINING = "Draining"
    DOWNLOADING_MODEL = "DownloadingModel"
    LOADING_MODEL = "LoadingModel"
    SWITCHING_STRATEGY = "SwitchingStrategy"
    STRATEGY_REFUSED = "StrategyRefused"
    CACHE_KEPT = "CacheKept"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"
    AS_EXPECTED = "AsExpected"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_NOT_CREATED = "ContainerNotCreated"
    VOLUMES_NOT_MOUNTED = "VolumesNotMounted"
    PODS_REFUSED = "PodsRefused"
    DOWNLOAD_FAILED = "DownloadFailed"
    MODEL_NOT_LOADED = "ModelNotLoaded"
    ENGINE_CRASHING = "EngineCrashing"
    GATEWAY_CRASHING = "GatewayCrashing"
    PODS_FAILED = "PodsFailed"
    NODE_LOST = "NodeLost"
    OUT_OF_MEMORY = "OutOfMemory"
    CLAIM_NOT_BOUND = "ClaimNotBound"
    UNSCHEDULABLE = "Unschedulable"
    GATEWAY_NOT_READY = "GatewayNotReady"
    PREFIX_INDEX_UNAVAILABLE = "PrefixIndexUnavailable"
    METRICS_MISSING = "MetricsMissing"
    APPLY_FAILED = "ApplyFailed"
    KIND_NOT_SERVED = "KindNotServed"
    FORBIDDEN = "Forbidden"
    SERVING = "Serving"


REASONS: dict[Reason, str] = {
    Reason.PLAN_COMPUTED: "The planner found a strategy that fits; status.plan has the byte ledger.",
    Reason.PLAN_REPORTED: (
        "Engines planned for themselves, since the operator knows too little of the model or the GPU, and "
        "status.plan is what one of them told. To see a plan before any engine starts, put the Hugging Face "
        "config.json into spec.model.config."
    ),
    Reason.PLAN_DIFFERS: (
        "Engines serve with the plan that was made for the nodes of their day and the declared workload. "
        "Nodes changed since, or engines measured traffic for which states of another type would do better, "
        "and the message says what would be planned now. Nothing is replaced for it: for other nodes a "
        "change of the spec, or a new annotation serving.mambaserve.io/restarted-at, makes the plan anew; "
        "for other states set spec.stateCache.stateDtype."
    ),
    Reason.STRATEGY_ANNOUNCED: (
        "For the traffic that engines measured another strategy has been expected to do better for half an "
        "hour. The message says which, by how much, and when running engines are told it; no pod is "
        "replaced. To keep the one in force name it in spec.stateCache.strategy; to go by the declared "
        "workload alone set spec.workloadSource to Declared."
    ),
    Reason.PLAN_DOES_NOT_FIT: (
        "The memory cannot hold the weights and one sequence. The message has the numbers and the changes "
        "that would make it fit."
    ),
    Reason.MODEL_NOT_SERVED: (
        "The model can be planned for and this version's engines cannot serve it; the message says what is "
        "missing. Nothing was changed. spec.mode Plan shows its plan."
    ),
    Reason.MODEL_UNKNOWN: (
        "The model's configuration is not known to the operator, so each engine plans for itself, and tells "
        "its plan once it answers. Put the Hugging Face config.json into spec.model.config to see it at "
        "once; of a model that serves already that replaces the engines."
    ),
    Reason.DEVICE_MEMORY_UNKNOWN: (
        "No node label says how much memory the GPU has. Set spec.memory.deviceMemory to see the plan."
    ),
    Reason.INVALID_SPEC: (
        "The object breaks the contract; the message names the field. What runs was left as it is."
    ),
    Reason.REPLICAS_AVAILABLE: "At least the minimum number of engines answers.",
    Reason.NO_READY_REPLICA: "No engine answers; see Progressing and Degraded for the cause.",
    Reason.BELOW_MINIMUM: (
        "Engines answer, and fewer than spec.scaling.minReplicas; see Progressing and Degraded for the cause."
    ),
    Reason.SCALED_TO_ZERO: "No engine runs, as asked; the first request wakes one.",
    Reason.PLAN_MODE: "spec.mode is Plan: the plan is shown and nothing is created. Set Active to serve.",
    Reason.UP_TO_DATE: "Every pod runs the wanted revision and count.",
    Reason.ROLLOUT_PAUSED: (
        "spec.rollout.pause keeps engines on an older revision; set it to false to replace them."
    ),
    Reason.ROLLOUT_QUEUED: (
        "The operator would replace the engines though nobody changed the object, as after its own upgrade, "
        "and waits until other such roll-outs are over: --max-rollouts of `mambaserve operator`. A new "
        "annotation serving.mambaserve.io/restarted-at begins at once."
    ),
    Reason.ROLLED_BACK: (
        "The revision that the spec asks for did not become ready, or failed more requests than the one "
        "before it, and engines went back to that; status.rollout names both, and the message what the new "
        "one failed of. All is served as before the change. A corrected spec is rolled out, and so is the "
        "same one with a new annotation "
        "serving.mambaserve.io/restarted-at."
    ),
    Reason.ROLLING_OUT: "Pods of an older revision are being replaced, each drained first.",
    Reason.SCALING_UP: "Engines are being added.",
    Reason.SCALING_DOWN: "Engines are being drained and removed.",
    Reason.DRAINING: "An engine finishes its requests before it ends.",
    Reason.DOWNLOADING_MODEL: (
        "The model is downloaded to the volume of spec.model.cache, by a Job, or with claimName by engine "
        "pods before they start; the message names the pod and how many bytes of all it has, or its log "
        "tells. Engines of that model are made, or start, when it is there; those that serve another one go "
        "on."
    ),
    Reason.LOADING_MODEL: "Pods run and load the weights.",
    Reason.SWITCHING_STRATEGY: (
        "Engines are being told another strategy or other checkpoints, which they take over while they "
        "serve; the message says who has not answered yet."
    ),
    Reason.STRATEGY_REFUSED: (
        "An engine does not take over the strategy while it has a request that would find no room under it; "
        "the message has its numbers. It serves as before and is asked again; a restart starts with the new "
        "one."
    ),
    Reason.PROGRESS_DEADLINE_EXCEEDED: (
        "Pods made no progress within spec.rollout.progressDeadline, and there is no ready revision to go "
        "back to, or most engines of the new one serve; those that serve keep serving. The message names "
        "what is stuck."
    ),
    Reason.AS_EXPECTED: "Nothing is wrong.",
    Reason.IMAGE_PULL_FAILED: "A pod's image cannot be pulled; check spec.engine.image and pull secrets.",
    Reason.CONTAINER_NOT_CREATED: (
        "A container cannot be made; the message is the kubelet's. Most often a Secret or ConfigMap that the "
        "spec names, or a key of it, does not exist: make it, or correct the name."
    ),
    Reason.VOLUMES_NOT_MOUNTED: (
        "A pod has waited for its volumes, or its network, for a minute; the message names what it mounts. "
        "Check that each Secret and claim exists and each claim is bound; `kubectl describe pod` says more."
    ),
    Reason.PODS_REFUSED: (
        "The cluster refuses to make pods: a quota, pod security or an admission webhook; the message is its "
        "own. Raise the quota, or meet the rule with spec.podTemplate; where a roll-out has no quota for one "
        "engine more, an older one goes first after spec.rollout.inPlaceAfter."
    ),
    Reason.DOWNLOAD_FAILED: (
        "The model cannot be downloaded to the volume of spec.model.cache; the message has the loader's last "
        "words and the time of the next attempt. Correct spec.model.uri or spec.model.tokenSecretRef, give "
        "the volume more room, or open the way to the Hub; deleting the Job, or the pod, tries again at once."
    ),
    Reason.MODEL_NOT_LOADED: (
        "An engine does not start with what it was given; the message has its last words. Check that the "
        "files of spec.model.uri are there and whole, and spec.engine.extraArgs."
    ),
    Reason.ENGINE_CRASHING: "An engine ends again and again; the message has its last words.",
    Reason.GATEWAY_CRASHING: "A gateway ends again and again; the message has its last words.",
    Reason.PODS_FAILED: (
        "Nodes refuse or evict engines, or gateways, one after the other; the message is the kubelet's. Most "
        "often a node lacks disk, memory or a GPU that works: mend the node, or ask for what the pods use in "
        "their requests."
    ),
    Reason.NODE_LOST: (
        "The node of a pod is not ready, or has not ended a pod that was to go. What such a pod holds, a GPU "
        "or a volume, is free when the node is back or its Node object is deleted."
    ),
    Reason.OUT_OF_MEMORY: (
        "A container was killed for memory; raise spec.resources.memory, or for a gateway the memory in "
        "spec.gateway.podTemplate."
    ),
    Reason.CLAIM_NOT_BOUND: (
        "A pod waits for a PersistentVolumeClaim that does not exist or has no volume; the message is the "
        "scheduler's. Make the claim, or give it a storage class that can make such a volume: most default "
        "classes of clouds have no ReadWriteMany."
    ),
    Reason.UNSCHEDULABLE: (
        "No node takes a pod; the message is the scheduler's. Where a roll-out has no spare GPU for the pod "
        "it adds, an older engine that has what it asks for goes first after spec.rollout.inPlaceAfter; "
        "otherwise set spec.rollout.maxSurge to 0 and maxUnavailable to 1."
    ),
    Reason.GATEWAY_NOT_READY: "Engines are ready and the gateway is not.",
    Reason.PREFIX_INDEX_UNAVAILABLE: (
        "Gateways or engines cannot use the Redis of spec.prefixIndex.redis; the message says who and why. "
        "Requests are answered: gateways ask the engines themselves, and Ready stays True. Check the "
        "address, the password in the Secret, Redis' memory and network policies; it heals by itself."
    ),
    Reason.CACHE_KEPT: (
        "The volume of spec.model.cache exists with another storage class or access mode, or cannot take the "
        "size; Kubernetes does not change that of a claim. It is used as it is: delete the claim, and it is "
        "made anew as the spec says, or set the field back."
    ),
    Reason.METRICS_MISSING: (
        "Pods that the message names have not told the operator their metrics for "
        "spec.scaling.scaleDownDelay, so the number of engines does not fall. Let the operator reach port "
        "8000 of engines and gateways: most often a NetworkPolicy of the namespace keeps it out."
    ),
    Reason.APPLY_FAILED: "The API server refused an object; the message is its own. Retried with back-off.",
    Reason.KIND_NOT_SERVED: (
        "The spec asks for an object of a kind that the cluster does not have, or that the operator may not "
        "list; the message names it. All else is as asked. Install its CRD or take the field out."
    ),
    Reason.FORBIDDEN: (
        "The operator may not read or write what it has to; the message names verb and resource. Give its "
        "role the missing rule. What it could not see, it did not change."
    ),
    Reason.SERVING: "The endpoint answers requests at status.url.",
}
HARMLESS = frozenset(
    {
        Reason.PREFIX_INDEX_UNAVAILABLE,
        Reason.METRICS_MISSING,
        Reason.STRATEGY_REFUSED,
        Reason.CACHE_KEPT,
        Reason.ROLLED_BACK,
    }
)
"""Reasons of Degraded that do not keep Ready from being true: all is served, if less well."""

OF_PODS = frozenset(
    {
        Reason.OUT_OF_MEMORY,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.DOWNLOAD_FAILED,
        Reason.MODEL_NOT_LOADED,
        Reason.ENGINE_CRASHING,
        Reason.GATEWAY_CRASHING,
        Reason.PODS_FAILED,
        Reason.NODE_LOST,
        Reason.VOLUMES_NOT_MOUNTED,
        Reason.CLAIM_NOT_BOUND,
        Reason.UNSCHEDULABLE,
        Reason.PODS_REFUSED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
    }
)
"""Reasons of Degraded that keep Ready from being true only while pods are missing: a pod that a roll-out adds
and that does not come up takes nothing from those that serve."""

STALLS = frozenset(
    {
        Reason.INVALID_SPEC,
        Reason.PLAN_DOES_NOT_FIT,
        Reason.MODEL_NOT_SERVED,
        Reason.PROGRESS_DEADLINE_EXCEEDED,
        Reason.ROLLED_BACK,
        Reason.DOWNLOAD_FAILED,
    }
)
"""Reasons of UpToDate after which the spec will not run until somebody does something."""
AS_ASKED = frozenset({Reason.PLAN_MODE, Reason.ROLLOUT_PAUSED})
"""Reasons of UpToDate that are the spec's own wish."""

REASONS_OF: dict[ConditionType, frozenset[Reason]] = {
    ConditionType.PLANNED: frozenset(
        {
            Reason.PLAN_COMPUTED,
            Reason.PLAN_REPORTED,
            Reason.PLAN_DIFFERS,
            Reason.STRATEGY_ANNOUNCED,
            Reason.PLAN_DOES_NOT_FIT,
            Reason.MODEL_NOT_SERVED,
            Reason.MODEL_UNKNOWN,
            Reason.DEVICE_MEMORY_UNKNOWN,
            Reason.INVALID_SPEC,
        }
    ),
    ConditionType.AVAILABLE: frozenset(
        {
            Reason.REPLICAS_AVAILABLE,
            Reason.NO_READY_REPLICA,
            Reason.BELOW_MINIMUM,
            Reason.SCALED_TO_ZERO,
            Reason.PLAN_MODE,
            Reason.GATEWAY_NOT_READY,
            Reason.INVALID_SPEC,
            Reason.PLAN_DOES_NOT_FIT,
            Reason.MODEL_NOT_SERVED,
        }
    ),
    ConditionType.PROGRESSING: frozenset(
        {
            Reason.UP_TO_DATE,
            Reason.ROLLING_OUT,
            Reason.ROLLOUT_PAUSED,
            Reason.ROLLOUT_QUEUED,
            Reason.ROLLED_BACK,
            Reason.SCALING_UP,
            Reason.SCALING_DOWN,
            Reason.DRAINING,
            Reason.DOWNLOADING_MODEL,
            Reason.DOWNLOAD_FAILED,
            Reason.LOADING_MODEL,
            Reason.SWITCHING_STRATEGY,
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            Reason.PLAN_MODE,
            Reason.INVALID_SPEC,
            Reason.PLAN_DOES_NOT_FIT,
            Reason.MODEL_NOT_SERVED,
        }
    ),
    ConditionType.DEGRADED: frozenset(
        {
            Reason.AS_EXPECTED,
            *OF_PODS,
            Reason.STRATEGY_REFUSED,
            Reason.ROLLED_BACK,
            Reason.CACHE_KEPT,
            Reason.PREFIX_INDEX_UNAVAILABLE,
            Reason.METRICS_MISSING,
            Reason.APPLY_FAILED,
            Reason.KIND_NOT_SERVED,
            Reason.FORBIDDEN,
            Reason.PLAN_DOES_NOT_FIT,
            Reason.MODEL_NOT_SERVED,
            Reason.INVALID_SPEC,
        }
    ),
    ConditionType.UP_TO_DATE: frozenset(Reason) - {Reason.SERVING},
    ConditionType.RECONCILING: frozenset(Reason) - {Reason.SERVING},
    ConditionType.STALLED: frozenset(Reason) - {Reason.SERVING},
    ConditionType.READY: frozenset(Reason),
}
"""Reasons each type may carry. UpToDate and Ready repeat the reason of what keeps them from being true,
Reconciling and Stalled that of UpToDate."""


def set_condition(
    conditions: Sequence[Condition],
    type_: ConditionType,
    status: ConditionStatus,
    reason: Reason,
    message: str,
    *,
    now: datetime,
    observed_generation: int,
) -> list[Condition]:
    """`conditions` with the one of `type_` set, in the order of `ConditionType`; the input is not changed.

    `lastTransitionTime` moves only when the status flips. A message is cut to what the CRD accepts.

    Raises:
        ValueError: the reason does not belong to the type (a programming error, not bad input).
    """
    if reason not in REASONS_OF[type_]:
        raise ValueError(f"{type_} never has the reason {reason}; see REASONS_OF")
    old = next((c for c in conditions if c.type == type_), None)
    changed = old is None or old.status != status
    fresh = Condition(
        type=type_.value,
        status=status,
        reason=reason.value,
        message=bounded(message, MAX_MESSAGE),
        last_transition_time=timestamp(now) if changed or old is None else old.last_transition_time,
        observed_generation=observed_generation,
    )
    kept = [c for c in conditions if c.type != type_]
    order = {name.value: index for index, name in enumerate(ConditionType)}
    return sorted([*kept, fresh], key=lambda c: order.get(c.type, len(order)))


def find_condition(conditions: Sequence[Condition], type_: ConditionType) -> Condition | None:
    """The condition of `type_`, if it was ever set."""
    return next((c for c in conditions if c.type == type_), None)


def timestamp(now: datetime) -> str:
    """RFC 3339 in UTC with whole seconds, as Kubernetes writes times. `now` must carry a time zone."""
    if now.tzinfo is None:
        raise ValueError("the time needs a time zone")
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
