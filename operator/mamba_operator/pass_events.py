"""The Kubernetes events of one pass: changes made to children, and conditions that changed. Pure.

`reconcile` hands them to `event_recorder`. The reason of a condition's event is the condition's own reason.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mamba_api.bounded_text import bounded
from mamba_api.v1alpha1 import Condition, Status
from mamba_api.v1alpha1.conditions import ConditionType, find_condition
from mamba_operator.apply import AppliedChange
from mamba_operator.children.changes import Change

TROUBLE = {ConditionType.PLANNED: "False", ConditionType.DEGRADED: "True"}
ANNOUNCED = (
    ConditionType.PLANNED,
    ConditionType.AVAILABLE,
    ConditionType.PROGRESSING,
    ConditionType.DEGRADED,
    ConditionType.READY,
)
MAX_MESSAGE = 1000
"""Of the message of an event, which may have 1024."""
WORDS: dict[Change, tuple[str, str]] = {
    Change.MISSING: ("Created", "Created"),
    Change.OUTDATED: ("Updated", "Updated"),
    Change.DRIFTED: ("Repaired", "Repaired"),
    Change.NOT_NEEDED: ("Deleted", "Deleted"),
}


@dataclass(frozen=True, slots=True)
class EventContent:
    """One Kubernetes event before it is written."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def pass_events(old: Status, new: Status | None, applied: Sequence[AppliedChange]) -> list[EventContent]:
    """Events of one pass, past tense, at most one per kind of change and one per condition that changed."""
    if new is None:
        return _child_events(applied)
    return [*_child_events(applied), *_scaling_events(old, new), *_condition_events(old, new)]


def _child_events(applied: Sequence[AppliedChange]) -> list[EventContent]:
    made: list[EventContent] = []
    for change, (reason, verb) in WORDS.items():
        those = [one for one in applied if one.change is change]
        if those:
            what = ", ".join(f"{one.ref} ({one.detail})" if one.detail else str(one.ref) for one in those)
            made.append(EventContent("Normal", reason, f"{verb} {what}"))
    return made


def _scaling_events(old: Status, new: Status) -> list[EventContent]:
    """That the number of engines was decided anew."""
    before, after = old.scaling, new.scaling
    if before is None or after is None or before.desired == after.desired:
        return []
    word = "ScaledUp" if after.desired > before.desired else "ScaledDown"
    message = f"Asked for {after.desired} engines instead of {before.desired}: {after.reason}"
    return [EventContent("Normal", word, bounded(message, MAX_MESSAGE))]


def _condition_events(old: Status, new: Status) -> list[EventContent]:
    made: dict[str, EventContent] = {}
    for type_ in ANNOUNCED:
        before, after = find_condition(old.conditions, type_), find_condition(new.conditions, type_)
        if after is None or _same(before, after):
            continue
        if before is None and after.status == _quiet(type_):
            # A healthy beginning is no news.
            continue
        trouble = after.status == TROUBLE.get(type_)
        message = f"{type_} became {after.status}: {after.message}"
        # Several conditions carry the same cause; one event of it is enough, a warning before a note.
        if trouble or after.reason not in made:
            made[after.reason] = EventContent("Warning" if trouble else "Normal", after.reason, message)
    return list(made.values())


def _same(before: Condition | None, after: Condition) -> bool:
    return before is not None and (before.status, before.reason) == (after.status, after.reason)


def _quiet(type_: ConditionType) -> str:
    return "True" if type_ is ConditionType.PROGRESSING else "False"
