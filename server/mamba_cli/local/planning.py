"""Plans deployments and model directories the way `plan` and `up` show them. One outcome per object."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mamba_cli.errors import InvalidInput
from mamba_cli.local.devices import cpu_device
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.model_facts import ModelFacts, facts_of_directory, facts_of_model
from mamba_server.budget import Constraints, Device, DoesNotFit, Plan, UnusableInput, Workload, plan
from mamba_server.budget.arithmetic import kv_bytes_per_token, state_bytes, weights_bytes
from mamba_server.budget.of_spec import constraints_of, workload_of
from mamba_server.model.config import ModelConfig
from mamba_server.model.families.served import why_not_served

ASSUMED_MEMORY = 80 << 30


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """What the command line says over the file; None = the file decides."""

    device_memory: int | None = None
    utilization: float | None = None
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A plan, or why there is none."""

    name: str
    source: str
    model: ModelConfig
    constraints: Constraints
    device: Device
    weights: int
    plan: Plan | None
    misfit: DoesNotFit | None
    notes: tuple[str, ...] = ()

    @property
    def not_served(self) -> str | None:
        """Why this version's engine cannot serve the model, however well the plan fits."""
        return why_not_served(self.model)

    def to_json(self) -> dict[str, Any]:
        """The object `plan --output json` prints."""
        dtype = self.constraints.dtype or self.model.dtype
        ways = self.constraints.tensor_parallel
        planned = self.plan.state_dtype if self.plan else self.constraints.state_dtype or "float32"
        shown: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "fits": self.plan is not None,
            "served": self.not_served is None,
            "model": {
                "family": self.model.family,
                "recurrentLayers": self.model.recurrent_layers,
                "attentionLayers": self.model.attention_layers,
                "stateBytes": state_bytes(self.model, planned, dtype, ways).total,
                "kvBytesPerToken": kv_bytes_per_token(self.model, dtype, ways),
                "weightsBytes": self.weights,
                "parameters": self.model.parameters,
            },
            "plan": None,
        }
        if self.plan is not None:
            shown["plan"] = self.plan.to_json()
            shown["plan"]["notes"] += self.notes
        if self.not_served is not None:
            shown["notServedBecause"] = self.not_served
        if self.misfit is not None:
            shown["reason"] = str(self.misfit)
            shown["needBytes"], shown["haveBytes"] = self.misfit.need, self.misfit.have
        return shown


def plan_deployment(loaded: LoadedDeployment, flags: PlanFlags, device: Device | None = None) -> PlanOutcome:
    """Plan one object; `device` None = what file and flags say. Raises `InvalidInput`, `RunFailed`."""
    spec = loaded.deployment.spec
    facts = facts_of_model(spec.model.uri, spec.model.config, loaded.path)
    notes: tuple[str, ...] = ()
    if device is None:
        told = flags.device_memory
        if told is None and spec.memory.device_memory is not None:
            told = spec.memory.device_memory.bytes
        gpus = spec.resources.gpus if flags.gpus is None else flags.gpus
        device, notes = _device(told, gpus)
    try:
        constraints = constraints_of(spec, flags.utilization, flags.gpus)
    except UnusableInput as error:
        raise InvalidInput(f"{loaded.path}: {loaded.deployment.name}: {error}") from error
    return _outcome(
        loaded.deployment.name, str(loaded.path), facts, constraints, device, workload_of(spec), notes
    )


def plan_directory(directory: Path, flags: PlanFlags) -> PlanOutcome:
    """Plan a model directory with default settings. Raises `InvalidInput`, `RunFailed`."""
    facts = facts_of_directory(directory)
    device, notes = _device(flags.device_memory, 1 if flags.gpus is None else flags.gpus)
    try:
        constraints = Constraints(utilization=flags.utilization or 0.9, tensor_parallel=flags.gpus or 1)
    except UnusableInput as error:
        raise InvalidInput(str(error)) from error
    name = directory.resolve().name
    return _outcome(name, str(directory), facts, constraints, device, None, notes)


def _device(told: int | None, gpus: int) -> tuple[Device, tuple[str, ...]]:
    if told is not None:
        return Device("cuda" if gpus else "cpu", told), ()
    if not gpus:
        return cpu_device(), ()
    assumed = "no device memory given: assumed 80Gi; set spec.memory.deviceMemory or --device-memory"
    return Device("cuda", ASSUMED_MEMORY), (assumed,)


def _outcome(
    name: str,
    source: str,
    facts: ModelFacts,
    constraints: Constraints,
    device: Device,
    workload: Workload | None,
    notes: tuple[str, ...],
) -> PlanOutcome:
    ways = constraints.tensor_parallel
    known = facts.weights_bytes(constraints.dtype, ways)
    by_count = weights_bytes(facts.config, constraints.dtype or facts.config.dtype, ways)
    if known is None:
        notes += ("weights by parameter count: no files at hand",)
    planned: Plan | None = None
    misfit: DoesNotFit | None = None
    try:
        planned = plan(facts.config, constraints, device, known, workload)
    except DoesNotFit as error:
        misfit = error
    except UnusableInput as error:
        raise InvalidInput(f"{source}: {name}: {error}") from error
    return PlanOutcome(
        name, source, facts.config, constraints, device,
        known if known is not None else by_count, planned, misfit, notes,
    )  # fmt: skip
