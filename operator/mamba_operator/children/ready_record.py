"""`ready_record`: which revision of the engines was last ready, all of it, and the note of that. Pure.

Called by `plan`. The note is a ConfigMap, to go back to should a later revision fail.
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
    """What was last ready."""

    revision: str | None
    """Label of the engine pods; None: no revision was, so far."""
    applies: tuple[Apply, ...] = ()
    """The note, where it says another revision."""
    up_to_date: Mapping[str, str] = field(default_factory=dict)
    """As `Snapshot.up_to_date`, of the note where that is as wanted now."""


def ready_record(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> ReadyRecord:
    """What was last ready, once the children are compared: what is about to change is not ready yet."""
    if not _became_ready(engines, snapshot, compared):
        last = engines.last_ready
        return ReadyRecord(last.label if last is not None else None)
    note = sealed(last_ready(engines.context))
    noted = compare_children([note], snapshot)
    applies = (Apply(note, Change.RECORDED),) if noted.applies else ()
    return ReadyRecord(engines.revision.label, applies, noted.up_to_date)


def _became_ready(engines: EngineRollout, snapshot: Snapshot, compared: ChildComparison) -> bool:
    """Whether all engines run the spec's own revision and are ready, and none of them is about to change."""
    one = Ref("Deployment", engines.context.children.engine)
    changing = any(ref(apply.manifest) == one for apply in compared.applies)
    waits = changing or engines.later or engines.choice.instead is not None
    return not waits and is_ready(snapshot.children.get(one), engines.revision.label, snapshot.pods)
