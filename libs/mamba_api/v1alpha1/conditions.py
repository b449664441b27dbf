"""Conditions of a MambaDeployment: the types, every reason with its meaning, and the one way to set one.

The operator's pure `status` module calls `set_condition`; events use the same reasons. No clock: the caller
passes the time.
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
    """Condition types in display order. Ready sums up the others and is computed last."""

    PLANNED = "Planned"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    DEGRADED = "Degraded"
    UP_TO_DATE = "UpToDate"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    READY = "Ready"


class Reason(StrEnum):
    """Cause of a condition's status. `REASONS` says what each reason means and what to do."""

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
    NO_READY_PREFILL_ENGINE = "NoReadyPrefillEngine"
    NO_READY_DECODE_ENGINE = "NoReadyDecodeEngine"
    BELOW_MINIMUM = "BelowMinimum"
    SCALED_TO_ZERO = "ScaledToZero"
    PLAN_MODE = "PlanMode"
    UP_TO_DATE = "UpToDate"
    ROLLING_OUT = "RollingOut"
    ROLLOUT_PAUSED = "RolloutPaused"
    ROLLOUT_QUEUED = "RolloutQueued"
    ROLLED_BACK = "RolledBack"
    CANARY_RUNNING = "CanaryRunning"
    CANARY_WAITS = "CanaryWaits"
    SCALING_UP = "ScalingUp"
    SCALING_DOWN = "ScalingDown"
    DRAINING = "Draining"
    DOWNLOADING_MODEL = "DownloadingModel"
    LOADING_MODEL = "LoadingModel"
    SWITCHING_STRATEGY = "SwitchingStrategy"
    SWITCHING_ADAPTERS = "SwitchingAdapters"
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
    ADAPTER_NOT_LOADED = "AdapterNotLoaded"
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
    IMAGE_VOLUMES_NOT_SERVED = "ImageVolumesNotServed"
    FORBIDDEN = "Forbidden"
    SERVING = "Serving"


REASONS: dict[Reason, str] = {
    Reason.PLAN_COMPUTED: "The planner found a strategy that fits; status.plan has the byte ledger.",
    Reason.PLAN_REPORTED: (
        "Engines plan for themselves because the operator knows too little about the model or the GPU, and "
        "status.plan shows the plan that one of them reported. To see a plan before any engine starts, put "
        "the Hugging Face config.json into spec.model.config."
    ),
    Reason.PLAN_DIFFERS: (
        "Engines serve with a plan that was computed for earlier nodes and for the declared workload. Nodes "
        "have changed since, or engines measured traffic for which states of another type would do better; "
        "the message says what would be planned now. No pod is replaced for this reason. For other nodes, "
        "change the spec or set a new annotation serving.mambaserve.io/restarted-at to plan again; for other"
        " states, set spec.stateCache.stateDtype."
    ),
    Reason.STRATEGY_ANNOUNCED: (
        "For half an hour, another strategy has been expected to do better for the traffic that engines "
        "measured. The message names the strategy, the expected gain, and when running engines receive it; "
        "no pod is replaced. To keep the current strategy, name it in spec.stateCache.strategy; to follow "
        "only the declared workload, set spec.workloadSource to Declared."
    ),
    Reason.PLAN_DOES_NOT_FIT: (
        "The memory cannot hold the weights and one sequence. The message has the numbers and the changes "
        "that would make it fit."
    ),
    Reason.MODEL_NOT_SERVED: (
        "This version can plan for the model, but its engines cannot serve it; the message says what is "
        "missing. Nothing was changed. spec.mode Plan shows the plan."
    ),
    Reason.MODEL_UNKNOWN: (
        "The operator does not know the configuration of the model, so each engine plans for itself and "
        "reports its plan once it answers. To see the plan at once, put the Hugging Face config.json into "
        "spec.model.config; if the model is already being served, that replaces the engines."
    ),
    Reason.DEVICE_MEMORY_UNKNOWN: (
        "No node label gives the memory of the GPU. Set spec.memory.deviceMemory to see the plan."
    ),
    Reason.INVALID_SPEC: (
        "The object breaks a rule of the API; the message names the field and the rule. Correct the field. "
        "Running pods were left unchanged."
    ),
    Reason.REPLICAS_AVAILABLE: "At least the minimum number of engines answers.",
    Reason.NO_READY_REPLICA: "No engine answers; see Progressing and Degraded for the cause.",
    Reason.NO_READY_PREFILL_ENGINE: (
        "No engine of the prefill pool answers, so nothing computes prompts; see Progressing and Degraded "
        "for the cause."
    ),
    Reason.NO_READY_DECODE_ENGINE: (
        "No engine of the decode pool answers, so nothing writes answers; see Progressing and Degraded for "
        "the cause."
    ),
    Reason.BELOW_MINIMUM: (
        "Fewer engines answer than spec.scaling.minReplicas; see Progressing and Degraded for the cause."
    ),
    Reason.SCALED_TO_ZERO: "No engine runs, as requested; the first request starts one.",
    Reason.PLAN_MODE: (
        "spec.mode is Plan: the plan is shown and nothing is created. Set it to Active to serve."
    ),
    Reason.UP_TO_DATE: "The desired number of pods runs, all of the desired revision.",
    Reason.ROLLOUT_PAUSED: (
        "spec.rollout.pause keeps engines on an older revision; set it to false to replace them."
    ),
    Reason.ROLLOUT_QUEUED: (
        "The operator would replace the engines although nobody changed the object, for example after its "
        "own upgrade, and waits until other roll-outs of this kind have finished: see --max-rollouts of "
        "`mambaserve operator`. A new annotation serving.mambaserve.io/restarted-at starts the roll-out at "
        "once."
    ),
    Reason.ROLLED_BACK: (
        "The new revision did not become ready, or failed more requests than the one before it, and engines "
        "went back to the previous revision. status.rollout names both revisions, and the message says why "
        "the new one failed. Requests are served as before the change. To try again, correct the spec, or "
        "set a new annotation serving.mambaserve.io/restarted-at."
    ),
    Reason.CANARY_RUNNING: (
        "A changed revision is tried beside the ready one, by the steps of spec.rollout.canary. "
        "status.canary has the numbers of the step. `mambaserve rollout` pauses, resumes, promotes or aborts "
        "it."
    ),
    Reason.CANARY_WAITS: (
        "A canary was paused, or its step has neither hold nor requests: both revisions serve until a person "
        "resumes, promotes or aborts it with `mambaserve rollout`."
    ),
    Reason.ROLLING_OUT: "Pods of an older revision are being replaced; each is drained first.",
    Reason.SCALING_UP: "The operator is adding engines: wait until they are ready.",
    Reason.SCALING_DOWN: "Surplus engines complete their requests and are then removed.",
    Reason.DRAINING: "An engine finishes its requests before it ends.",
    Reason.DOWNLOADING_MODEL: (
        "The model is being downloaded to the volume of spec.model.cache, by a Job, or with claimName by "
        "engine pods before they start. The message names the pod and the bytes downloaded so far, or refers"
        " to its log. Engines of this model start when the download is complete; engines that serve another "
        "model continue."
    ),
    Reason.LOADING_MODEL: "Engine pods run and load the weights: wait until they are ready.",
    Reason.SWITCHING_STRATEGY: (
        "Running engines are receiving another strategy or other checkpoint settings, which they apply while"
        " they serve; the message names the engines that have not confirmed yet."
    ),
    Reason.SWITCHING_ADAPTERS: (
        "Running engines load and unload adapters of spec.model.adapters while they serve; the message names "
        "the engines that do not serve all of them yet."
    ),
    Reason.STRATEGY_REFUSED: (
        "An engine does not apply the strategy while it has a request that would not fit under it; the "
        "message has the numbers. The engine serves as before, and the operator tries again; after a restart"
        " the engine uses the new strategy."
    ),
    Reason.PROGRESS_DEADLINE_EXCEEDED: (
        "Pods made no progress within spec.rollout.progressDeadline, and either there is no ready revision "
        "to go back to, or most engines of the new one serve. Engines that serve continue to do so. The "
        "message names what is stuck."
    ),
    Reason.AS_EXPECTED: "Nothing is wrong.",
    Reason.IMAGE_PULL_FAILED: (
        "The image of a pod cannot be pulled; check spec.engine.image and the pull secrets."
    ),
    Reason.CONTAINER_NOT_CREATED: (
        "A container cannot be created; the message is the kubelet's. Usually a Secret or ConfigMap that the"
        " spec names, or a key in it, does not exist: create it, or correct the name."
    ),
    Reason.VOLUMES_NOT_MOUNTED: (
        "A pod has waited for its volumes or its network for a minute; the message names the volumes. Check "
        "that each Secret and claim exists and that each claim is bound; `kubectl describe pod` shows "
        "details."
    ),
    Reason.PODS_REFUSED: (
        "The cluster refuses to create pods because of a quota, pod security or an admission webhook; the "
        "message is the cluster's. Raise the quota, or meet the rule with spec.podTemplate. If a roll-out "
        "has no quota for one more engine, an older one is removed first after spec.rollout.inPlaceAfter."
    ),
    Reason.DOWNLOAD_FAILED: (
        "The model cannot be downloaded to the volume of spec.model.cache; the message has the loader's last"
        " output and the time of the next attempt. Correct spec.model.uri, or the Secret of "
        "spec.model.tokenSecretRef or secretRef, enlarge the volume, or allow access to the source. Deleting "
        "the Job, or the pod, tries again at once."
    ),
    Reason.MODEL_NOT_LOADED: (
        "An engine cannot start with its model or arguments; the message has its last output. Check that the"
        " files of spec.model.uri exist and are complete, and check spec.engine.extraArgs."
    ),
    Reason.ADAPTER_NOT_LOADED: (
        "An engine cannot load an adapter of spec.model.adapters, which the message names with the cause. "
        "Correct the adapter's URI, its files, or its Secret, or raise spec.model.maxAdapterRank or "
        "maxAdapterExpertRank; or remove the adapter. Engines that already serve continue."
    ),
    Reason.ENGINE_CRASHING: "An engine crashes repeatedly; the message has its last output.",
    Reason.GATEWAY_CRASHING: "A gateway crashes repeatedly; the message has its last output.",
    Reason.PODS_FAILED: (
        "Nodes refuse or evict engines, or gateways, one after the other; the message is the kubelet's. "
        "Usually a node lacks disk space, memory or a working GPU: repair the node, or set the pods' "
        "requests to what they use."
    ),
    Reason.NODE_LOST: (
        "The node of a pod is not ready, or has not ended a pod that should stop. A GPU or a volume that "
        "such a pod holds becomes free when the node is back or its Node object is deleted."
    ),
    Reason.OUT_OF_MEMORY: (
        "A container was killed because it ran out of memory; raise spec.resources.memory, or for a gateway "
        "the memory in spec.gateway.podTemplate."
    ),
    Reason.CLAIM_NOT_BOUND: (
        "A pod waits for a PersistentVolumeClaim that does not exist or has no volume; the message is the "
        "scheduler's. Create the claim, or give it a storage class that can provide such a volume: most "
        "default classes of clouds do not support ReadWriteMany."
    ),
    Reason.UNSCHEDULABLE: (
        "No node accepts a pod; the message is the scheduler's. If a roll-out has no spare GPU for the pod "
        "that it adds, an older engine that occupies the needed resources is removed first after "
        "spec.rollout.inPlaceAfter; otherwise set spec.rollout.maxSurge to 0 and maxUnavailable to 1."
    ),
    Reason.GATEWAY_NOT_READY: (
        "No gateway is ready, so no request reaches the engines; see Progressing and Degraded for the cause."
    ),
    Reason.PREFIX_INDEX_UNAVAILABLE: (
        "Gateways or engines cannot use the Redis of spec.prefixIndex.redis; the message names the pod and "
        "the cause. Requests are still answered: gateways ask the engines directly, and Ready stays True. "
        "Check the address, the password in the Secret, the memory of Redis and the network policies. The "
        "condition clears by itself."
    ),
    Reason.CACHE_KEPT: (
        "The volume of spec.model.cache exists with another storage class or access mode, or cannot take the"
        " new size; Kubernetes cannot change these on a claim. The volume is used as it is. Delete the "
        "claim, and it is created again from the spec, or set the field back."
    ),
    Reason.METRICS_MISSING: (
        "The operator has read no metrics of the pods named in the message for spec.scaling.scaleDownDelay, "
        "so it does not reduce the number of engines. Let the operator reach port 8000 of engines and "
        "gateways: usually a NetworkPolicy of the namespace blocks it."
    ),
    Reason.APPLY_FAILED: (
        "The API server refused an object; the message is the API server's. The operator retries with back-"
        "off."
    ),
    Reason.KIND_NOT_SERVED: (
        "The spec needs an object of a kind that the cluster does not have, or that the operator may not "
        "list; the message names the kind. Everything else is in place. Install its CRD or remove the field."
    ),
    Reason.IMAGE_VOLUMES_NOT_SERVED: (
        "The cluster has no volumes of images, which spec.model.imageVolume needs. Its API server would leave"
        " the volume out, so the operator writes no engines, and older ones go on. Remove imageVolume, so "
        "that engines download the model, or enable the feature gate ImageVolume of the API server and the "
        "kubelets (Kubernetes 1.33 and later)."
    ),
    Reason.FORBIDDEN: (
        "The operator lacks a permission; the message names verb and resource. Add the missing rule to its "
        "role. The operator does not change what it cannot read."
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
"""Reasons of Degraded that do not keep Ready from being true: all requests are served, if less well."""

OF_PODS = frozenset(
    {
        Reason.OUT_OF_MEMORY,
        Reason.IMAGE_PULL_FAILED,
        Reason.CONTAINER_NOT_CREATED,
        Reason.DOWNLOAD_FAILED,
        Reason.MODEL_NOT_LOADED,
        Reason.ADAPTER_NOT_LOADED,
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
and that does not become ready takes nothing from the pods that serve."""

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
"""Reasons of UpToDate after which the spec does not run until somebody acts."""
AS_ASKED = frozenset({Reason.PLAN_MODE, Reason.ROLLOUT_PAUSED, Reason.CANARY_WAITS})
"""Reasons of UpToDate that the spec itself requests."""

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
            Reason.NO_READY_PREFILL_ENGINE,
            Reason.NO_READY_DECODE_ENGINE,
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
            Reason.CANARY_RUNNING,
            Reason.CANARY_WAITS,
            Reason.SCALING_UP,
            Reason.SCALING_DOWN,
            Reason.DRAINING,
            Reason.DOWNLOADING_MODEL,
            Reason.DOWNLOAD_FAILED,
            Reason.LOADING_MODEL,
            Reason.SWITCHING_STRATEGY,
            Reason.SWITCHING_ADAPTERS,
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
            Reason.IMAGE_VOLUMES_NOT_SERVED,
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
"""Reasons that each type may have. UpToDate and Ready repeat the reason that keeps them from being true;
Reconciling and Stalled repeat the reason of UpToDate."""


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
    """Return a copy of `conditions` with the one of `type_` set, in the order of `ConditionType`.

    `lastTransitionTime` moves only when the status changes. A message is cut to the length the CRD accepts.

    Raises:
        ValueError: the reason does not belong to the type (a programming error, not bad input).
    """
    if reason not in REASONS_OF[type_]:
        raise ValueError(f"{type_} never has the reason {reason}; see REASONS_OF")
    return place_condition(
        conditions, type_, status, reason, message, now=now, observed_generation=observed_generation
    )


def place_condition(
    conditions: Sequence[Condition],
    type_: StrEnum,
    status: ConditionStatus,
    reason: StrEnum,
    message: str,
    *,
    now: datetime,
    observed_generation: int,
) -> list[Condition]:
    """Return a copy of `conditions` with the condition of `type_` set, in the order of its enumeration.

    The other parameters are those of `set_condition`.
    """
    previous = find_condition(conditions, type_)
    changed = previous is None or previous.status != status
    condition = Condition(
        type=type_.value,
        status=status,
        reason=reason.value,
        message=bounded(message, MAX_MESSAGE),
        last_transition_time=timestamp(now) if changed or previous is None else previous.last_transition_time,
        observed_generation=observed_generation,
    )
    others = [other for other in conditions if other.type != type_]
    order = {name.value: index for index, name in enumerate(type(type_))}
    return sorted([*others, condition], key=lambda item: order.get(item.type, len(order)))


def find_condition(conditions: Sequence[Condition], type_: StrEnum) -> Condition | None:
    """Return the condition of `type_`, or None if it was never set."""
    return next((condition for condition in conditions if condition.type == type_), None)


def timestamp(now: datetime) -> str:
    """Return `now` as RFC 3339 in UTC with whole seconds, as Kubernetes writes times.

    `now` must have a time zone. Raises ValueError if it has none.
    """
    if now.tzinfo is None:
        raise ValueError("the time needs a time zone")
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
