"""The Kubernetes events of one pass: changes of children, and conditions that changed. Pure.

`reconcile` passes them to `event_recorder`. The event of a condition has the condition's own reason.
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
MAX_PASS_MESSAGE = 1000
"""Characters of the messages that are built here; the API server accepts 1024."""
REASONS_AND_VERBS: dict[Change, tuple[str, str]] = {
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
    """Return the events of one pass: at most one per kind of change, and one per condition that changed."""
    if new is None:
        return _child_events(applied)
    return [*_child_events(applied), *_scaling_events(old, new), *_condition_events(old, new)]


def _child_events(applied: Sequence[AppliedChange]) -> list[EventContent]:
    events: list[EventContent] = []
    for change, (reason, verb) in REASONS_AND_VERBS.items():
        changes = [item for item in applied if item.change is change]
        if changes:
            refs = ", ".join(
                f"{item.ref} ({item.detail})" if item.detail else str(item.ref) for item in changes
            )
            events.append(EventContent("Normal", reason, f"{verb} {refs}"))
    return events


def _scaling_events(old: Status, new: Status) -> list[EventContent]:
    """Return the event of a changed decision about the number of engines."""
    before, after = old.scaling, new.scaling
    if before is None or after is None or before.desired == after.desired:
        return []
    reason = "ScaledUp" if after.desired > before.desired else "ScaledDown"
    message = f"Changed the number of engines from {before.desired} to {after.desired}: {after.reason}"
    return [EventContent("Normal", reason, bounded(message, MAX_PASS_MESSAGE))]


def _condition_events(old: Status, new: Status) -> list[EventContent]:
    events: dict[str, EventContent] = {}
    for type_ in ANNOUNCED:
        before, after = find_condition(old.conditions, type_), find_condition(new.conditions, type_)
        if after is None or _same(before, after):
            continue
        if before is None and after.status == _initial_status(type_):
            # The first status of a new object is no change.
            continue
        trouble = after.status == TROUBLE.get(type_)
        message = f"{type_} became {after.status}: {after.message}"
        # Several conditions may have the same cause: one event is enough, a warning rather than a note.
        if trouble or after.reason not in events:
            events[after.reason] = EventContent("Warning" if trouble else "Normal", after.reason, message)
    return list(events.values())


def _same(before: Condition | None, after: Condition) -> bool:
    return before is not None and (before.status, before.reason) == (after.status, after.reason)


def _initial_status(type_: ConditionType) -> str:
    return "True" if type_ is ConditionType.PROGRESSING else "False"
