"""`plan_memory`: asks the planner whether an engine of a deployment fits its memory. Pure; called by `plan`.

It plans with the settings that the engine gets and with the function that the engine plans with; here only
the device is found and the answer turned into a verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mamba_planner
from mamba_api.v1alpha1 import MambaDeployment, PlanStatus
from mamba_api.v1alpha1.conditions import Reason
from mamba_operator.memory.plan_verdict import (
    ModelNotServed,
    PlanDoesNotFit,
    PlanFits,
    PlanUnknown,
    PlanVerdict,
    SpecInvalid,
)
from mamba_planner.arithmetic import WeightsSize
from mamba_planner.families import ModelConfigError, model_config_from_hf
from mamba_planner.families.support import why_not_served
from mamba_planner.model_config import ModelConfig
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import engine_settings


@dataclass(frozen=True, slots=True)
class PlannerInput:
    """What the planner plans an engine of a deployment from."""

    model: ModelConfig
    settings: EngineSettings
    device: mamba_planner.Device
    weights_bytes: int | None
    not_served: str | None = None
    """Why engines of this version cannot serve the model, where only its plan is asked for."""


def plan_memory(
    deployment: MambaDeployment,
    gpu_memory: int | None,
    config: Mapping[str, Any] | None = None,
    weights: WeightsSize | None = None,
) -> PlanVerdict:
    """What the planner says.

    Args:
        deployment: the object.
        gpu_memory: bytes of one GPU by node labels; the spec wins over it.
        config: the model's config.json when it is known from elsewhere; the spec's own wins over it.
        weights: the size of its files when that is known; None = by parameter count.
    """
    given = planner_input(deployment, gpu_memory, config, weights)
    return planned(given) if isinstance(given, PlannerInput) else given


def planner_input(
    deployment: MambaDeployment,
    gpu_memory: int | None,
    config: Mapping[str, Any] | None = None,
    weights: WeightsSize | None = None,
) -> PlannerInput | PlanUnknown | SpecInvalid | ModelNotServed:
    """What to plan from, or why there is not enough. The arguments of `plan_memory`."""
    spec = deployment.spec
    known = spec.model.config if spec.model.config is not None else config
    if known is None:
        cache = spec.model.cache
        return PlanUnknown(
            Reason.MODEL_UNKNOWN,
            f"the configuration of {spec.model.uri} is not known before "
            + (
                "it is downloaded"
                if cache is not None and cache.size is not None
                else "an engine has started"
            )
            + "; put its config.json into spec.model.config to see the plan at once",
        )
    try:
        model = model_config_from_hf(known, "spec.model.config")
    except ModelConfigError as error:
        return SpecInvalid(str(error))
    not_served = why_not_served(model)
    if not_served is not None and spec.mode == "Active":
        return ModelNotServed(not_served)
    device = _device(deployment, gpu_memory)
    if device is None:
        return PlanUnknown(
            Reason.DEVICE_MEMORY_UNKNOWN,
            "no node label nvidia.com/gpu.memory says how much memory a GPU has: set spec.memory.deviceMemory"
            if spec.resources.gpus
            else "how much memory the engine may take is not said: set spec.resources.memory, "
            "spec.memory.deviceMemory or spec.memory.arena",
        )
    try:
        settings = engine_settings(deployment)
        return PlannerInput(model, settings, device, _loaded_bytes(weights, model, settings), not_served)
    except mamba_planner.UnusableInput as error:
        return SpecInvalid(str(error))


def planned(
    given: PlannerInput, workload: mamba_planner.Workload | None = None
) -> PlanFits | PlanDoesNotFit | SpecInvalid:
    """What comes of it. `workload`: in place of what the spec declares."""
    try:
        made = mamba_planner.plan_engine(
            given.model, given.settings, given.device, given.weights_bytes, workload=workload
        )
    except mamba_planner.UnusableInput as error:
        return SpecInvalid(str(error))
    except mamba_planner.InsufficientMemory as error:
        return PlanDoesNotFit(str(error))
    message = (
        f"{made.strategy} with {made.state_dtype} states: {made.max_running_requests} "
        f"sequences of {made.workload.lengths} tokens fit at once, {made.slots} slots, "
        f"{made.pages} pages; what binds: {made.binding_constraint}"
    )
    notes = "".join(f"; {note}" for note in (*made.notes, *((given.not_served,) if given.not_served else ())))
    return PlanFits(
        PlanStatus.model_validate(made.to_status(), by_alias=True, by_name=False), message + notes
    )


def _loaded_bytes(weights: WeightsSize | None, model: ModelConfig, settings: EngineSettings) -> int | None:
    if weights is None:
        return None
    constraints = mamba_planner.Constraints.of(settings)
    return weights.loaded(constraints.dtype or model.dtype, constraints.quantization)


def depends_on_nodes(deployment: MambaDeployment) -> bool:
    """Whether node labels have to say how much memory a GPU has."""
    spec = deployment.spec
    return bool(spec.resources.gpus) and spec.memory.device_memory is None


def _device(deployment: MambaDeployment, gpu_memory: int | None) -> mamba_planner.Device | None:
    spec = deployment.spec
    if spec.resources.gpus:
        given = spec.memory.device_memory.bytes if spec.memory.device_memory is not None else gpu_memory
        kind: Any = "cuda"
    else:
        size = spec.memory.device_memory or spec.resources.memory
        given, kind = (size.bytes if size is not None else None), "cpu"
    if given is None and spec.memory.arena is not None:
        # An arena of a given size is planned for whatever the device has.
        given = 0
    return None if given is None else mamba_planner.Device(kind, given)
