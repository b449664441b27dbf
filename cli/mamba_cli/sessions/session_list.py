"""The sessions in a folder, each with model, depth, size, date, and whether it is whole."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mamba_cli.errors import InvalidInput
from mamba_cli.sessions.admin_calls import checked

SUFFIX = ".session"


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A file in a folder of sessions; `damage` says why it cannot be used; "" = it can."""

    name: str
    size: int
    model: str = ""
    depth: int = 0
    saved_at: str = ""
    """Time of the save, in UTC."""
    fingerprint: str = ""
    damage: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "file": self.name, "model": self.model, "depth": self.depth, "bytes": self.size,
            "savedAt": self.saved_at, "fingerprint": self.fingerprint, "damage": self.damage,
        }  # fmt: skip


def listed(folder: Path) -> list[ListedSession]:
    """Return the sessions in a folder, by name. Raises InvalidInput."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file())
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be listed: {error.strerror}") from error
    return [_listed(file) for file in files]


def _listed(file: Path) -> ListedSession:
    size = 0
    try:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            session = checked(descriptor, file)
        finally:
            os.close(descriptor)
    except InvalidInput as error:
        return ListedSession(file.name, size, damage=str(error).removeprefix(f"{file}: "))
    except OSError as error:
        return ListedSession(file.name, size, damage=f"cannot be read: {error.strerror}")
    notes, header = session.notes, session.header
    saved_at = datetime.fromtimestamp(notes.saved_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return ListedSession(file.name, size, notes.model, header.depth, saved_at, header.fingerprint)
