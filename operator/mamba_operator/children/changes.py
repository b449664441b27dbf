"""`Apply` and `Delete`: changes that a pass makes to one child, with their reasons. Pure data."""

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
    """The child is a record for later passes and changes nothing that runs."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Change that makes a child match `manifest`."""

    manifest: Manifest
    change: Change
    detail: str = ""
    """Fields that drifted, for people to read."""
    create_only: bool = False
    """Whether an existing child is kept, because its content is random."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Removal of a child that is no longer needed."""

    ref: Ref
    uid: str
    change: Change = Change.NOT_NEEDED
