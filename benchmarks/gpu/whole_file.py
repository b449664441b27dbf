"""Files that are always whole: a reader, or a kill at any moment, never meets half of a write."""

import json
import os
from pathlib import Path
from typing import Any


def write_whole(path: Path, text: str) -> None:
    """Replace the content of `path` in one step.

    The new content goes to a file without a name first, where the file system has such files, so that a kill
    leaves no fragment in the folder either.
    """
    beside = path.with_name(f".{path.name}")
    try:
        _link_whole(beside, text)
    except OSError:
        beside.write_text(text)
    beside.replace(path)


def _link_whole(path: Path, text: str) -> None:
    """Give a name to a file that is complete already. Raises OSError where that cannot be done."""
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_DIRECTORY)
    try:
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            # With a folder's descriptor the link in /proc is followed to the file behind it.
            os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


class LinesFile:
    """A JSON Lines file. The first line names card and versions; every other line is one case of a stage."""

    def __init__(self, path: Path) -> None:
        """Read what an earlier run left in the file; a line that does not parse is dropped."""
        self._path = path
        self.lines: list[dict[str, Any]] = []
        if path.exists():
            self.lines = [line for text in path.read_text().splitlines() if (line := _parsed(text))]

    def forget(self, stage: str) -> None:
        """Drop the lines of an earlier run of `stage`. The file changes at the next `add`."""
        self.lines = [line for line in self.lines if line.get("stage") != stage]

    def add(self, line: dict[str, Any]) -> None:
        """Append a line; it is in the file when this returns."""
        self.lines.append(line)
        write_whole(self._path, "".join(json.dumps(each) + "\n" for each in self.lines))

    def has_facts(self, stage: str) -> bool:
        """Return whether card and versions of `stage` stand in the file."""
        return any(line.get("facts_of") == stage for line in self.lines)


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
