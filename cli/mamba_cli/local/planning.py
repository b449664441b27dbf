"""`PlanOutcome`: the plan of one deployment or model, or the reason why there is none, for `plan` and `up`.

The module also reads the devices of this machine and the sizes that options give.
"""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from mamba_api.choices import ON_CPUS, KvCacheDtype, Quantization, Role
from mamba_api.errors import InvalidModelUri, InvalidQuantity
from mamba_api.v1alpha1 import MambaDeployment
from mamba_api.v1alpha1.profiles import Profiles, profile_in_words, profiled_pools
from mamba_cli.errors import InvalidInput, RunFailed
from mamba_cli.local.documents import LoadedDeployment
from mamba_cli.local.model_facts import (
    ModelFacts,
    UnreadableHub,
    facts_of_config,
    facts_of_directory,
    facts_of_draft_model,
    facts_of_model,
    facts_of_uri,
)
from mamba_planner import Constraints, Device, InsufficientMemory, MemoryPlan, UnusableInput, plan_engine
from mamba_planner.arithmetic import kv_bytes_per_token, state_bytes, weights_bytes
from mamba_planner.cards.gpu_sizes import MIB_OF, card_memory
from mamba_planner.cards.shipped_profiles import SHIPPED
from mamba_planner.constraints import StateDtype
from mamba_planner.engine_plan import pool_state_dtype
from mamba_planner.families.registry import why_not_served
from mamba_planner.hand_over import hand_over_tokens
from mamba_planner.model_config import ModelConfig
from mamba_server.host_memory import available_bytes
from mamba_server.model.checkpoint.errors import ModelError
from mamba_server.model.checkpoint.source import display_name
from mamba_settings.byte_size import binary_size, exact_size, read_size
from mamba_settings.engine_settings import EngineSettings
from mamba_settings.spec_settings import disk_budget, engine_settings

ASSUMED_MEMORY = 80 << 30
"""Memory in bytes of a GPU that a file requires and nothing describes."""
NO_GPU_HERE = (
    "planned for the CPU of this machine, which mambaserve serve would use; for a GPU, name it, as in "
    "--device-memory H100 or 80Gi"
)
_MIN_BYTES = 1 << 20
"""Smallest size of memory that an option accepts: a smaller one lacks its unit."""
_QUERY = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """Options of the command line that override the file; None = the file decides."""

    device_memory: int | None = None
    utilization: float | None = None
    gpus: int | None = None
    """Number of GPUs: 1, or 0 for the CPU, since an engine runs on one device."""
    profiles: Profiles = field(default_factory=lambda: SHIPPED)
    """Profiles that the file may name in spec.resources.profile."""
    any_gpu: bool = False
    """True = plan for other machines than this one: a device that nothing names is a GPU of
    `ASSUMED_MEMORY`."""
    quantization: Quantization | None = None
    """How the engine holds its matrices."""
    kv_cache_dtype: KvCacheDtype | None = None
    """Type of the keys and values in pages."""

    def changed(self, settings: EngineSettings) -> EngineSettings:
        """Return the settings of an engine, changed by the options that were given."""
        values = {
            "utilization": self.utilization,
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
        }
        return settings.model_copy(update={name: each for name, each in values.items() if each is not None})


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """Result of the planner for one object or one of its pools: a plan, or why there is none."""

    name: str
    source: str
    """File or URI that the plan is of."""
    model: ModelConfig
    constraints: Constraints
    device: Device
    weights: int
    plan: MemoryPlan | None
    misfit: InsufficientMemory | None
    notes: tuple[str, ...] = ()
    """Remarks for the user, such as where a size comes from."""

    @property
    def role(self) -> Role:
        """Role of the planned engine."""
        return self.constraints.role

    @property
    def title(self) -> str:
        """Name of the object, followed by the role of the pool if the plan is of a pool."""
        return self.name if self.role == "unified" else f"{self.name} {self.role}"

    @property
    def not_served(self) -> str | None:
        """Reason why the engine of this version cannot serve the model; None = it can."""
        return why_not_served(self.model)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `plan --output json` prints."""
        dtype = self.constraints.dtype or self.model.dtype
        planned = self.plan.state_dtype if self.plan else self.constraints.state_dtype or "float32"
        document: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            **({} if self.role == "unified" else {"role": self.role}),
            "fits": self.plan is not None,
            "served": self.not_served is None,
            "model": {
                "family": self.model.family,
                "recurrentLayers": self.model.recurrent_layers,
                "attentionLayers": self.model.attention_layers,
                "stateBytes": state_bytes(self.model, planned, dtype).total,
                "kvBytesPerToken": kv_bytes_per_token(
                    self.model, dtype, kv_cache_dtype=self.constraints.kv_cache_dtype
                ),
                "weightsBytes": self.weights,
                "parameters": self.model.parameters,
            },
            "plan": None,
        }
        if self.plan is not None:
            document["plan"] = self.plan.to_json()
            document["plan"]["notes"] += self.notes
        if self.not_served is not None:
            document["notServedBecause"] = self.not_served
        if self.misfit is not None:
            document["reason"] = str(self.misfit)
            document["needBytes"], document["haveBytes"] = self.misfit.need, self.misfit.have
            if (sizes := self.misfit.sizes) is not None:
                document["smallestSize"] = None if sizes.smallest is None else exact_size(sizes.smallest)
        return document


@dataclass(frozen=True, slots=True)
class PlannedPool:
    """One pool of an object, or the whole unified object, with the result of the planner."""

    role: Role
    loaded: LoadedDeployment
    """The deployment of the pool alone, with the type of states that both pools have."""
    outcome: PlanOutcome


Adjust = Callable[[MambaDeployment], tuple[MambaDeployment, Device | None]]
"""Returns the deployment of a pool as it runs on some machine, and the device; None = the device of file and
flags."""


def plan_pools(loaded: LoadedDeployment, flags: PlanFlags, adjust: Adjust | None = None) -> list[PlannedPool]:
    """Plan each pool of one object; a unified object is one pool. Raises `InvalidInput`, `RunFailed`."""
    pools = profiled_pools(loaded.deployment, flags.profiles)

    @cache
    def planned(role: Role, state_dtype: StateDtype | None) -> PlannedPool:
        pool, device = pools[role], None
        if state_dtype is not None:
            pool = with_state_dtype(pool, state_dtype)
        if adjust is not None:
            pool, device = adjust(pool)
        document = replace(loaded, deployment=pool)
        return PlannedPool(role, document, plan_deployment(document, flags, device, role))

    def planned_dtype(role: Role, state_dtype: StateDtype | None) -> StateDtype | None:
        memory_plan = planned(role, state_dtype).outcome.plan
        return memory_plan.state_dtype if memory_plan is not None else None

    both: StateDtype | None = None
    if loaded.deployment.spec.disaggregation is not None:
        both = pool_state_dtype(planned_dtype)
    return [_with_hand_over(planned(role, both), loaded.deployment) for role in pools]


def _with_hand_over(pool: PlannedPool, deployment: MambaDeployment) -> PlannedPool:
    """Return the pool with a note on the prompts that it hands over, if it is one of prefill engines."""
    least = hand_over_tokens(deployment)
    if least is None or pool.role != "prefill":
        return pool
    note = f"computes prompts of which a decode engine would have to compute {least:,} tokens or more"
    return replace(pool, outcome=replace(pool.outcome, notes=(*pool.outcome.notes, note)))


def with_state_dtype(pool: MambaDeployment, state_dtype: StateDtype) -> MambaDeployment:
    """Return the deployment with `stateCache.stateDtype` set, if its own value is Auto."""
    cache_spec = pool.spec.state_cache
    if cache_spec.state_dtype != "Auto":
        return pool
    fixed = cache_spec.model_copy(update={"state_dtype": state_dtype})
    return pool.model_copy(update={"spec": pool.spec.model_copy(update={"state_cache": fixed})})


def plan_deployment(
    loaded: LoadedDeployment, flags: PlanFlags, device: Device | None = None, role: Role = "unified"
) -> PlanOutcome:
    """Plan one object or pool for `device`; None = for the device that file and flags name.

    Raises `InvalidInput`, `RunFailed`.
    """
    spec = loaded.deployment.spec
    facts = facts_of_model(spec.model.uri, spec.model.config, loaded.path)
    draft = spec.engine.draft_uri
    beside = None if draft is None else facts_of_draft_model(draft, loaded.path)
    notes: tuple[str, ...] = ()
    if device is None:
        memory = flags.device_memory
        if memory is None and spec.memory.device_memory is not None:
            memory = spec.memory.device_memory.bytes
        gpus = spec.resources.gpus if flags.gpus is None else flags.gpus
        device, notes = _device(memory, gpus, flags)
        if spec.memory.arena is not None:
            # An explicit arena can be meant for another machine than this one.
            device = replace(device, declared=True)
        if profile_note := profile_in_words(loaded.deployment):
            notes = (*notes, profile_note)
    settings = flags.changed(engine_settings(loaded.deployment, role))
    if (disk := spec.state_cache.disk) is not None:
        settings = settings.model_copy(update={"disk_cache_bytes": disk_budget(disk)})
    if draft is not None and beside is not None:
        facts = facts.with_draft_model(draft, beside, settings, on_cpu=device.kind == "cpu")
    return _outcome(loaded.deployment.name, str(loaded.path), facts, settings, device, notes)


def plan_directory(directory: Path, flags: PlanFlags) -> PlanOutcome:
    """Plan a model directory with default settings. Raises `InvalidInput`, `RunFailed`."""
    return _plan_model(directory.resolve().name, str(directory), facts_of_directory(directory), flags)


def plan_uri(uri: str, flags: PlanFlags) -> PlanOutcome:
    """Plan the model at a URI with default settings. Raises `InvalidInput`, `RunFailed`."""
    try:
        facts = facts_of_uri(uri, Path("-"))
        name = display_name(uri)
    except (ModelError, InvalidModelUri) as error:
        raise InvalidInput(str(error)) from error
    except UnreadableHub as error:
        raise RunFailed(f"{error}; or plan a local directory, its config.json or a known:// model") from error
    return _plan_model(name, uri, facts, flags)


def plan_config(file: Path, config: Mapping[str, Any], flags: PlanFlags) -> PlanOutcome:
    """Plan a model's config.json without its weights. Raises `InvalidInput`, `RunFailed`."""
    facts = facts_of_config(config, str(file))
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _plan_model(name, str(file), facts, flags)


def _plan_model(name: str, source: str, facts: ModelFacts, flags: PlanFlags) -> PlanOutcome:
    device, notes = _device(flags.device_memory, flags.gpus, flags)
    settings = flags.changed(EngineSettings(model=source))
    return _outcome(name, source, facts, settings, device, notes)


def _device(memory: int | None, gpus: int | None, flags: PlanFlags) -> tuple[Device, tuple[str, ...]]:
    """Return the device to plan for, and notes on it.

    `memory` is the size in bytes that the file or an option names; `gpus` None = as this machine has them.
    Raises `InvalidInput` when an option requires a GPU that is neither named nor in this machine.
    """
    if memory is not None:
        return Device("cpu" if gpus == 0 else "cuda", memory), ()
    if flags.any_gpu and gpus != 0:
        return Device("cuda", ASSUMED_MEMORY), ()
    if gpus == 0:
        return cpu_device(), ()
    if (present := gpu_memory()) is not None:
        return Device("cuda", present), (f"planned for the GPU of this machine, {binary_size(present)}",)
    if gpus is None:
        return cpu_device(), (NO_GPU_HERE,)
    if flags.gpus:
        raise InvalidInput(
            "--gpus: this machine has no NVIDIA GPU: name one, such as --device-memory H100 or 80Gi"
        )
    assumed = (
        "planned for an assumed GPU of 80Gi, because the file requires a GPU and this machine has none; name "
        "its memory with spec.memory.deviceMemory or --device-memory, or plan for this CPU with --gpus 0"
    )
    return Device("cuda", ASSUMED_MEMORY), (assumed,)


def _outcome(
    name: str,
    source: str,
    facts: ModelFacts,
    settings: EngineSettings,
    device: Device,
    notes: tuple[str, ...],
) -> PlanOutcome:
    on_cpu = device.kind == "cpu"
    if settings.quantization in ON_CPUS and not on_cpu:
        raise InvalidInput(
            f"{source}: {name}: quantization {settings.quantization} is for engines without GPUs: plan for a "
            "CPU with --gpus 0, or choose another with --quantization"
        )
    try:
        constraints = Constraints.of(settings)
    except UnusableInput as error:
        raise InvalidInput(f"{source}: {name}: {error}") from error
    weights_on_disk = facts.weights_bytes(constraints.dtype, constraints.quantization, on_cpu=on_cpu)
    by_count = weights_bytes(
        facts.config,
        constraints.dtype or facts.config.dtype,
        quantization=constraints.quantization,
        on_cpu=on_cpu,
    )
    if (stored := facts.config.stored) is not None:
        notes += (stored.held(on_cpu=on_cpu, dtype=constraints.dtype or facts.config.dtype),)
    if weights_on_disk is None:
        notes += ("the size of the weights follows from the parameter count, because no files tell it",)
    planned: MemoryPlan | None = None
    misfit: InsufficientMemory | None = None
    try:
        planned = plan_engine(facts.config, settings, device, weights_on_disk)
    except InsufficientMemory as error:
        misfit = error
    except UnusableInput as error:
        raise InvalidInput(f"{source}: {name}: {error}") from error
    return PlanOutcome(
        name, source, facts.config, constraints, device,
        weights_on_disk if weights_on_disk is not None else by_count, planned, misfit, notes,
    )  # fmt: skip


def gpu_memory(command: list[str] | None = None, timeout: float = 10.0) -> int | None:
    """Return the bytes of the smallest GPU as its driver reports them.

    The result is None without a GPU or a driver, and if the driver does not answer within `timeout` seconds.
    """
    try:
        result = subprocess.run(
            command or _QUERY, capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    sizes = [int(line) for line in result.stdout.split() if line.isdigit()]
    return min(sizes) << 20 if result.returncode == 0 and sizes else None


def cpu_device() -> Device:
    """Return the CPU of this machine with its free memory. Raises `RunFailed` where it cannot be read."""
    try:
        return Device("cpu", available_bytes(), declared=False)
    except OSError as error:
        raise RunFailed(
            f"cannot read the free memory of this machine: {error}: give --device-memory"
        ) from error


def size_option(option: str, text: str | None) -> int | None:
    """Return the bytes that `text` stands for, a size or the name of a GPU; None for None.

    Raises `InvalidInput` that names `option`.
    """
    if text is None:
        return None
    if (card := card_memory(text)) is not None:
        return card
    try:
        count = read_size(text)
    except InvalidQuantity as error:
        cards = "" if text[:1].isdigit() else f"; the known GPUs are {', '.join(MIB_OF)}"
        raise InvalidInput(f"{option}: {error}{cards}") from error
    if count <= 0:
        raise InvalidInput(f"{option}: must be above 0")
    if count < _MIN_BYTES:
        raise InvalidInput(f"{option}: {text} without a unit is {count} bytes: write {text}Gi or {text}Mi")
    return count
