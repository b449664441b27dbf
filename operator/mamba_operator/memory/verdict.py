"""`MemoryVerdict`: the planner's verdict on a deployment's memory, one class per outcome. Pure.

Called by `pin` and `in_force`, and by `plan` where engines planned for themselves. The planner gets the
settings that the engine gets, and its function is the one with which the engine plans; this module only finds
the device and turns the answer into a verdict. A plan that engines reported is shown in the status and never
rendered, so it replaces no engine that planned for itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mamba_planner
from mamba_api.choices import Role
from mamba_api.v1alpha1 import MambaDeployment, PlanStatus, Status
from mamba_api.v1alpha1.conditions import ConditionType, Reason, find_condition
from mamba_operator.observation.snapshot import ReportedPlan
from mamba_planner.arithmetic import WeightsSize
from mamba_planner.families import ModelConfigError, model_config_from_hf
from mamba_planner.families.registry import why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import disk_budget, engine_settings


@dataclass(frozen=True, slots=True)
class Fits:
    """Verdict that a strategy fits."""

    plan: PlanStatus
    message: str
    """One line with the most important numbers of the plan."""
    reported: bool = False
    """Whether engines computed this plan and reported it, because the operator could compute none."""


@dataclass(frozen=True, slots=True)
class DoesNotFit:
    """Verdict that an engine's memory is too small for the weights, the workspace and one sequence.

    The pass changes no child.
    """

    message: str
    """Required and available bytes, and the changes that help."""


@dataclass(frozen=True, slots=True)
class ModelNotServed:
    """Verdict that the engines of this version cannot serve a model that the planner knows.

    The pass changes no child.
    """

    message: str
    """Missing feature of the engines, and the models that they serve."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Verdict that an argument of the planner is not known yet. Engines may start and plan for themselves."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class SpecInvalid:
    """Verdict that the spec breaks a rule which the API server does not check. The pass changes no child."""

    message: str


MemoryVerdict = Fits | DoesNotFit | ModelNotServed | Unknown | SpecInvalid


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """The arguments of the planner for the engines of one deployment."""

    model: ModelConfig
    settings: EngineSettings
    device: mamba_planner.Device
    weights_bytes: int | None
    not_served: str | None = None
    """Why engines of this version cannot serve the model. Set in mode Plan only, which plans nevertheless."""


def plan_memory(
    deployment: MambaDeployment,
    gpu_memory: int | None,
    config: Mapping[str, Any] | None = None,
    weights: WeightsSize | None = None,
    role: Role = "unified",
) -> MemoryVerdict:
    """Return the planner's verdict on a deployment.

    Args:
        deployment: the object, or the deployment of one pool if `role` is prefill or decode.
        gpu_memory: bytes of one GPU by node labels; the spec takes precedence.
        config: the model's config.json, if known from elsewhere; `spec.model.config` takes precedence.
        weights: size of the model's files; None = estimated from the number of parameters.
        role: work of the engines.
    """
    source = planner_input(deployment, gpu_memory, config, weights, role)
    return plan_engine_memory(source) if isinstance(source, PlannerInput) else source


def planner_input(
    deployment: MambaDeployment,
    gpu_memory: int | None,
    config: Mapping[str, Any] | None = None,
    weights: WeightsSize | None = None,
    role: Role = "unified",
) -> PlannerInput | Unknown | SpecInvalid | ModelNotServed:
    """Return the planner's arguments, or the verdict where they are incomplete or unusable.

    The parameters are described at `plan_memory`.
    """
    spec = deployment.spec
    model_json = spec.model.config if spec.model.config is not None else config
    if model_json is None:
        return _model_unknown(deployment)
    try:
        model = model_config_from_hf(model_json, "spec.model.config")
    except ModelConfigError as error:
        return SpecInvalid(str(error))
    not_served = why_not_served(model)
    if not_served is not None and spec.mode == "Active":
        return ModelNotServed(not_served)
    if (draft := spec.engine.draft_uri) is not None:
        return Unknown(
            Reason.MODEL_UNKNOWN,
            f"the operator cannot plan the memory, because the size of the draft model {draft} is unknown; "
            "an engine plans for itself when it starts, and its plan is then shown here",
        )
    device = _device(deployment, gpu_memory)
    if device is None:
        return Unknown(
            Reason.DEVICE_MEMORY_UNKNOWN,
            "no node has the label nvidia.com/gpu.memory, which states the memory of a GPU: set "
            "spec.memory.deviceMemory"
            if spec.resources.gpus
            else "the spec does not state how much memory an engine may use: set spec.resources.memory, "
            "spec.memory.deviceMemory or spec.memory.arena",
        )
    try:
        settings = engine_settings(deployment, role)
        if (disk := spec.state_cache.disk) is not None:
            settings = settings.model_copy(update={"disk_cache_bytes": disk_budget(disk)})
        on_cpu = device.kind == "cpu"
        loaded = _loaded_bytes(weights, model, settings, on_cpu=on_cpu)
        return PlannerInput(model, settings, device, loaded, not_served)
    except mamba_planner.UnusableInput as error:
        return SpecInvalid(str(error))


def _model_unknown(deployment: MambaDeployment) -> Unknown:
    model = deployment.spec.model
    moment = "it is downloaded" if model.has_download_job else "an engine has started"
    return Unknown(
        Reason.MODEL_UNKNOWN,
        f"the configuration of {model.uri} is not known before {moment}; put its config.json into "
        "spec.model.config to see the plan at once",
    )


def plan_engine_memory(
    source: PlannerInput, workload: mamba_planner.Workload | None = None
) -> Fits | DoesNotFit | SpecInvalid:
    """Run the planner and return its verdict.

    Args:
        source: the planner's arguments.
        workload: traffic to plan for; None = the traffic that the spec declares.
    """
    try:
        plan = mamba_planner.plan_engine(
            source.model, source.settings, source.device, source.weights_bytes, workload=workload
        )
    except mamba_planner.UnusableInput as error:
        return SpecInvalid(str(error))
    except mamba_planner.InsufficientMemory as error:
        return DoesNotFit(str(error))
    message = (
        f"{plan.strategy} with {plan.state_dtype} states: {plan.max_running_requests} "
        f"sequences of {plan.workload.lengths} tokens fit at once, {plan.slots} slots, "
        f"{plan.pages} pages; binding constraint: {plan.binding_constraint}"
    )
    notes = (*plan.notes, *((source.not_served,) if source.not_served else ()))
    status = PlanStatus.model_validate(plan.to_status(), by_alias=True, by_name=False)
    return Fits(status, "; ".join([message, *notes]))


def _loaded_bytes(
    weights: WeightsSize | None, model: ModelConfig, settings: EngineSettings, *, on_cpu: bool
) -> int | None:
    if weights is None:
        return None
    constraints = mamba_planner.Constraints.of(settings)
    dtype = constraints.dtype or model.dtype
    return weights.loaded(model, dtype, constraints.quantization, on_cpu=on_cpu)


def depends_on_nodes(deployment: MambaDeployment) -> bool:
    """Return whether the memory of a GPU has to be read from node labels."""
    spec = deployment.spec
    return bool(spec.resources.gpus) and spec.memory.device_memory is None


def _device(deployment: MambaDeployment, gpu_memory: int | None) -> mamba_planner.Device | None:
    spec = deployment.spec
    if spec.resources.gpus:
        capacity = spec.memory.device_memory.bytes if spec.memory.device_memory is not None else gpu_memory
        kind: Any = "cuda"
    else:
        size = spec.memory.device_memory or spec.resources.memory
        capacity, kind = (size.bytes if size is not None else None), "cpu"
    if capacity is None and spec.memory.arena is not None:
        # The size of the arena is fixed, so the plan does not depend on the memory of the device.
        capacity = 0
    return None if capacity is None else mamba_planner.Device(kind, capacity)


def with_report(
    verdict: MemoryVerdict,
    deployment: MambaDeployment,
    reported: ReportedPlan | None,
    revision: str,
    role: Role = "unified",
) -> MemoryVerdict:
    """Return the operator's verdict, or the plan that an engine reported where the operator has none.

    A reported plan in the status of the same generation holds until an engine reports another one, so that a
    restarted operator need not fetch it first.

    Args:
        verdict: the operator's own verdict.
        deployment: the object.
        reported: the plan that an engine reported last.
        revision: desired revision of the engines; a report of another revision is ignored.
        role: role of the engines.
    """
    if not isinstance(verdict, Unknown):
        return verdict
    if reported is not None and reported.revision == revision:
        return Fits(reported.plan, _reported_message(reported.plan), reported=True)
    old = deployment.status
    planned = find_condition(old.conditions, ConditionType.PLANNED) if old is not None else None
    plan = _recorded_plan(old, role)
    if (
        plan is not None
        and planned is not None
        and planned.reason == Reason.PLAN_REPORTED
        and planned.observed_generation == deployment.metadata.generation
    ):
        message = planned.message if role == "unified" else _reported_message(plan)
        return Fits(plan, message, reported=True)
    return verdict


def _recorded_plan(status: Status | None, role: Role) -> PlanStatus | None:
    """Return the memory plan that `status` records for the engines of `role`; None if it records none."""
    if status is None:
        return None
    if role == "unified":
        return status.plan
    return next((pool.plan for pool in status.pools if pool.name == role), None)


def _reported_message(plan: PlanStatus) -> str:
    return (
        f"planned by an engine: {plan.strategy} with {plan.state_dtype} states: "
        f"{plan.max_running_requests} sequences of the planned lengths fit at once, {plan.slots} slots, "
        f"{plan.pages} pages; binding constraint: {plan.binding_constraint}"
    )
