"""What the plan of a serving revision was made for: nodes that come and go change nothing that serves.

Kept as an annotation of the engine Deployment, so that it comes and goes with the pods it is about. It holds
until the pods are replaced for another reason; then the plan is made for the nodes of that day. Pure.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from mamba_api import names
from mamba_api.v1alpha1 import MambaDeployment
from mamba_operator.memory.gpu_memory import smallest_gpu
from mamba_operator.memory.memory_plan import (
    PlannerInput,
    depends_on_nodes,
    plan_memory,
    planned,
    planner_input,
)
from mamba_operator.memory.plan_verdict import ModelNotServed, PlanUnknown, PlanVerdict, SpecInvalid
from mamba_operator.objects.manifest import Manifest, annotation, digest
from mamba_operator.observation.placement import Node
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.context import Context
from mamba_operator.render.engine_pod import engine_pod_template
from mamba_planner.model_report import ModelReport
from mamba_settings.byte_size import binary_size


@dataclass(frozen=True, slots=True)
class PlanPin:
    """A revision of the engine pods, and the GPU its plan was made for."""

    revision: str
    """Hash of the pod template, less what the planner chose."""
    gpu_memory: int | None
    """Bytes of one GPU; None = no node told, and each engine planned for itself."""

    def annotation(self) -> str:
        """How the annotation `planned-for` says it."""
        return json.dumps({"revision": self.revision, "gpuMemory": self.gpu_memory})


def pin_for(
    deployment: MambaDeployment,
    recorded_at: Iterable[Manifest | None],
    nodes: Iterable[Node],
    key_id: str,
    loaded: ModelReport | None = None,
) -> tuple[PlanPin, int | None]:
    """What to plan for, and the memory that node labels tell of now.

    Args:
        deployment: the object; its plan depends on nodes.
        kept: objects that may say it: the engine Deployment, and what was last ready.
        nodes: those with GPUs.
        key_id, loaded: as in `Context`.

    Raises:
        InvalidPatch: `spec.podTemplate` cannot be merged.
    """
    # Without a plan: what the planner chose must not tell one revision from another.
    template = engine_pod_template(Context(deployment, 0, None, key_id, loaded=loaded))
    pod = template.get("spec")
    now = smallest_gpu(nodes, pod if isinstance(pod, dict) else {}, deployment.spec.resources.gpu_resource)
    revision = digest(template)
    found = (recorded_pin(one, revision) for one in recorded_at)
    return next(filter(None, found), PlanPin(revision, now)), now


def recorded_pin(engine: Manifest | None, revision: str) -> PlanPin | None:
    """What the serving revision was planned for; None: there is none, or its pods are to be replaced."""
    text = annotation(engine, names.ANNOTATION_PLANNED_FOR) if engine is not None else None
    try:
        recorded: Any = json.loads(text) if text is not None else None
    except ValueError:
        return None
    if not isinstance(recorded, dict) or recorded.get("revision") != revision:
        return None
    memory = recorded.get("gpuMemory")
    known = type(memory) is int and memory > 0
    return PlanPin(revision, memory if known else None) if known or memory is None else None


@dataclass(frozen=True, slots=True)
class PinnedVerdict:
    """The planner's verdict for the pinned GPU, and the input that it was made from."""

    verdict: PlanVerdict
    given: PlannerInput | None
    """What it was planned from; None where there was not enough."""
    annotation: str | None = None
    """`planned-for`; None where the spec says how much memory there is."""
    difference: str | None = None
    """What would be planned for today's nodes, where that is another plan."""


def pinned_verdict(
    deployment: MambaDeployment,
    engine: Manifest | None,
    snapshot: Snapshot,
    key_id: str,
    loaded: ModelReport | None,
) -> PinnedVerdict:
    """For the nodes that what serves was planned for.

    `loaded` is as in `Context`. Raises InvalidPatch when `spec.podTemplate` cannot be merged.
    """
    config = loaded.config if loaded is not None else snapshot.model_config
    weights = loaded.weights if loaded is not None else None
    if not depends_on_nodes(deployment):
        return _verdict(planner_input(deployment, None, config, weights))
    last = snapshot.child("ConfigMap", names.Children(deployment.name).last_ready)
    for_, now = pin_for(deployment, (engine, last), snapshot.nodes, key_id, loaded)
    judged = _verdict(planner_input(deployment, for_.gpu_memory, config, weights))
    differs = None
    # A pool that an autoscaler has emptied tells nothing, and takes nothing from what serves.
    if now is not None and now != for_.gpu_memory:
        other = plan_memory(deployment, now, config, weights)
        if other != judged.verdict:
            differs = (
                f"nodes now have GPUs of {binary_size(now)}, and a new revision would be planned for them: "
                f"{other.message}; what serves stays as it is until its pods are replaced: annotate the "
                f"MambaDeployment with a new {names.ANNOTATION_RESTART} to have that now, or set "
                "spec.memory.deviceMemory"
            )
    return replace(judged, annotation=for_.annotation(), difference=differs)


def _verdict(given: PlannerInput | PlanUnknown | SpecInvalid | ModelNotServed) -> PinnedVerdict:
    return (
        PinnedVerdict(planned(given), given)
        if isinstance(given, PlannerInput)
        else PinnedVerdict(given, None)
    )
