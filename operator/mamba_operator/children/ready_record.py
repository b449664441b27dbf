"""`ready_record`: records the last revision of which all engines were ready. Pure; called by `plan`.

The record is a ConfigMap, to which engines are rolled back if a later revision fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mamba_operator.children.changes import Apply, Change
from mamba_operator.children.child_comparison import ChildComparison, compare_children
from mamba_operator.children.engine_rollout import EngineRollout
from mamba_operator.objects.manifest import Ref, ref, sealed
from mamba_operator.observation.snapshot import Snapshot
from mamba_operator.render.engine import last_ready
from mamba_operator.rollout.rollback import is_ready


@dataclass(frozen=True, slots=True)
class ReadyRecord:
    """Last revision that was ready, and the change of its record."""

    revision: str | None
    """Label of the engine pods; None = no revision has been ready yet."""
    applies: tuple[Apply, ...] = ()
    """The record, if it has another revision."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """Value of `Snapshot.up_to_date` for the record, if it is up to date."""


def ready_record(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> ReadyRecord:
    """Decide which revision was last ready. Engines that this pass changes (`compared`) are not ready yet."""
    if not _is_ready_now(engines, snapshot, compared):
        last = engines.last_ready
        return ReadyRecord(last.label if last is not None else None)
    record = sealed(last_ready(engines.context))
    comparison = compare_children([record], snapshot)
    applies = (Apply(record, Change.RECORDED),) if comparison.applies else ()
    return ReadyRecord(engines.revision.label, applies, comparison.up_to_date)


def _is_ready_now(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> bool:
    """Return whether all engines run the spec's own revision and are ready, and none is about to change."""
    deployment = Ref("Deployment", engines.context.children.engine)
    changing = any(ref(apply.manifest) == deployment for apply in compared.applies)
    waits = changing or engines.later or engines.choice.instead is not None
    return not waits and is_ready(snapshot.children.get(deployment), engines.revision.label, snapshot.pods)
