"""What a pass does to one child: `Apply` or `Delete`, each with its reason. Pure data, made by `plan`."""

from dataclasses import dataclass
from enum import StrEnum

from mamba_operator.objects.manifest import Manifest, Ref


class Change(StrEnum):
    """Why a child is written or removed."""

    MISSING = "Missing"
    OUTDATED = "Outdated"
    DRIFTED = "Drifted"
    NOT_NEEDED = "NotNeeded"
    RECORDED = "Recorded"
    """A note for later; nothing runs otherwise for it."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Make a child be as `manifest` says."""

    manifest: Manifest
    change: Change
    detail: str = ""
    """For people: the fields that drifted."""
    create_only: bool = False
    """Never overwrite: the content was made once."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a child that is not wanted any more."""

    ref: Ref
    uid: str
    change: Change = Change.NOT_NEEDED
