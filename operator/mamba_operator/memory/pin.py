"""`GpuPin`: the GPU for which the serving revision was planned, even if nodes are added or removed. Pure.

Called by `plan`. The pin is an annotation of the engine Deployment, so it exists as long as the pods. It is
valid until the pods are replaced for another reason; the new revision is then planned for the nodes of that
time, by the labels of NVIDIA's feature discovery. `placement` decides which nodes count.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from mamba_api import names
from mamba_api.choices import Role
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.memory.verdict import (
    Fits,
    MemoryVerdict,
    ModelNotServed,
    PlannerInput,
    SpecInvalid,
    Unknown,
    depends_on_nodes,
    plan_engine_memory,
    plan_memory,
    planner_input,
)
from mamba_operator.objects.manifest import Manifest, annotation, digest
from mamba_operator.observation.placement import Labels, Node, may_run_on, number_of
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.engine_pod import engine_pod_template
from mamba_planner.constraints import StateDtype
from mamba_planner.engine_plan import pool_state_dtype
from mamba_planner.model_report import ModelReport
from mamba_settings.byte_size import binary_size

_SHARED = ".shared"
"""Suffix that feature discovery adds to the name of a resource whose devices several pods share."""
MIB = 1024 * 1024


def smallest_gpu(nodes: Iterable[Node], pod: Mapping[str, Any], resource: str) -> int | None:
    """Return the bytes of the smallest GPU that the pod may get; None where no label states a size.

    Args:
        nodes: the nodes with GPUs.
        pod: the spec of the pod.
        resource: the extended resource that stands for one GPU, or for a slice of one (MIG).
    """
    sizes = (_gpu_size(node.labels, resource) for node in nodes if may_run_on(node, pod))
    return min((size for size in sizes if size is not None), default=None)


def _gpu_size(labels: Labels, resource: str) -> int | None:
    name = resource.removesuffix(_SHARED)
    mib = number_of(labels.get(f"{name}.memory"))
    if mib is None:
        return None
    # Pods that take turns on a GPU share its memory, and nothing keeps one pod from taking the others' share.
    sharers = (
        number_of(labels.get(f"{name}.replicas"))
        if labels.get(f"{name}.sharing-strategy") != "none"
        else None
    )
    return int(mib * MIB / max(sharers or Decimal(1), Decimal(1)))


@dataclass(frozen=True, slots=True)
class GpuPin:
    """Records for which GPU a revision of the engine pods was planned, so that its plan does not change."""

    revision: str
    """Hash of the pod template without the planner's choices."""
    gpu_memory: int | None
    """Memory of one GPU in bytes; None = no node label stated it, and each engine planned for itself."""

    def annotation(self) -> str:
        """Return the value of the annotation `planned-for`."""
        return json.dumps({"revision": self.revision, "gpuMemory": self.gpu_memory})


def pin_for(
    deployment: MambaDeployment,
    recorded_at: Iterable[Manifest | None],
    nodes: Iterable[Node],
    key_id: str,
    loaded: ModelReport | None = None,
    role: Role = "unified",
) -> tuple[GpuPin, int | None]:
    """Return the pin to plan for, and the bytes of the smallest GPU by the present labels of nodes.

    Args:
        deployment: the object, whose plan depends on nodes.
        recorded_at: objects that may have the annotation: the engine Deployment, and the ConfigMap of the
            last ready revision.
        nodes: the nodes with GPUs.
        key_id: value of `Context.key_id`.
        loaded: value of `Context.loaded`.
        role: value of `Context.role`.
    """
    # The template is rendered without a plan, so that the planner's choices do not change the revision.
    template = engine_pod_template(Context(deployment, 0, None, key_id, loaded=loaded, role=role))
    pod = template.get("spec")
    now = smallest_gpu(nodes, pod if isinstance(pod, dict) else {}, deployment.spec.resources.gpu_resource)
    revision = digest(template)
    pins = (recorded_pin(manifest, revision) for manifest in recorded_at)
    return next(filter(None, pins), GpuPin(revision, now)), now


def recorded_pin(manifest: Manifest | None, revision: str) -> GpuPin | None:
    """Return the pin that an object records for `revision`; None without a valid one.

    That is so if the object is missing, has no such annotation or an invalid one, or a pin of another
    revision.
    """
    text = annotation(manifest, names.ANNOTATION_PLANNED_FOR) if manifest is not None else None
    try:
        recorded: Any = json.loads(text) if text is not None else None
    except ValueError:
        return None
    if not isinstance(recorded, dict) or recorded.get("revision") != revision:
        return None
    memory = recorded.get("gpuMemory")
    if memory is None:
        return GpuPin(revision, None)
    return GpuPin(revision, memory) if type(memory) is int and memory > 0 else None


@dataclass(frozen=True, slots=True)
class PinnedVerdict:
    """Holds what the planner says for the GPU in the pin, with the arguments that it was given."""

    verdict: MemoryVerdict
    planner_input: PlannerInput | None
    """Arguments of the planner; None where they are incomplete or unusable."""
    annotation: str | None = None
    """Value of the annotation `planned-for`; None where the spec states the memory."""
    difference: str | None = None
    """Message that a plan for the present nodes would differ from the serving one; None = it would not."""


def pinned_verdict(
    deployment: MambaDeployment,
    engine: Manifest | None,
    snapshot: Snapshot,
    key_id: str,
    loaded: ModelReport | None,
) -> PinnedVerdict:
    """Return the verdict for the GPU for which the serving revision was planned.

    Args:
        deployment: the object.
        engine: the engine Deployment, if it exists.
        snapshot: observed objects, of the engines' role.
        key_id: as in `Context`.
        loaded: as in `Context`.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    config = loaded.config if loaded is not None else snapshot.model_config
    weights = loaded.weights if loaded is not None else None
    if not depends_on_nodes(deployment):
        return _verdict(planner_input(deployment, None, config, weights, snapshot.role))
    last = snapshot.child("ConfigMap", snapshot.names.last_ready)
    pin, now = pin_for(deployment, (engine, last), snapshot.nodes, key_id, loaded, snapshot.role)
    pinned = _verdict(planner_input(deployment, pin.gpu_memory, config, weights, snapshot.role))
    difference = None
    # A node pool that an autoscaler has emptied states no size, and nothing that serves changes for it.
    if now is not None and now != pin.gpu_memory:
        verdict_now = plan_memory(deployment, now, config, weights, snapshot.role)
        if verdict_now != pinned.verdict:
            difference = (
                f"nodes now have GPUs of {binary_size(now)}, and a new revision would be planned for them: "
                f"{verdict_now.message}; the running engines keep their plan until their pods are replaced: "
                f"to replace them now, set a new value of the annotation {names.ANNOTATION_RESTART} on the "
                "MambaDeployment, or set spec.memory.deviceMemory to the size to plan for"
            )
    return replace(pinned, annotation=pin.annotation(), difference=difference)


def pinned_pools(
    pools: Mapping[Role, MambaDeployment],
    snapshots: Mapping[Role, Snapshot],
    key_id: str,
    loaded: ModelReport | None,
) -> dict[Role, PinnedVerdict]:
    """Return the verdict for each pool; both pools are planned with states of one type.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    pinned = {
        role: pinned_verdict(pool, snapshots[role].engine, snapshots[role], key_id, loaded)
        for role, pool in pools.items()
    }
    if len(pinned) == 1:
        return pinned

    def planned(role: Role, state_dtype: StateDtype | None) -> StateDtype | None:
        verdict = (pinned[role] if state_dtype is None else _with_states(pinned[role], state_dtype)).verdict
        return verdict.plan.state_dtype if isinstance(verdict, Fits) else None

    both = pool_state_dtype(planned)
    return pinned if both is None else {role: _with_states(own, both) for role, own in pinned.items()}


def _with_states(pinned: PinnedVerdict, state_dtype: StateDtype) -> PinnedVerdict:
    """Return the verdict of a plan with states of the type `state_dtype`, unless the spec sets a type."""
    source = pinned.planner_input
    if source is None or source.settings.state_dtype != "auto":
        return pinned
    settings = source.settings.model_copy(update={"state_dtype": state_dtype})
    fixed = replace(source, settings=settings)
    return replace(pinned, verdict=plan_engine_memory(fixed), planner_input=fixed)


def _verdict(source: PlannerInput | Unknown | SpecInvalid | ModelNotServed) -> PinnedVerdict:
    if isinstance(source, PlannerInput):
        return PinnedVerdict(plan_engine_memory(source), source)
    return PinnedVerdict(source, None)
