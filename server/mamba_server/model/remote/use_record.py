"""`UseRecord`: by which URI a copy in the model cache was last used, and when.

A small file for each copy, beside the copies: models--NAME/mambaserve-use/COMMIT.json. Its time of change is
the time of the last use, so nothing here reads a clock. `checkpoint.source` writes one whenever a process
resolves the model, `model_copy` when a download begins, `checkpoint.cached_models` reads them. A cache that
cannot be written, as that of an engine on a shared volume, keeps no records and nothing else changes.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

FOLDER = "mambaserve-use"


@dataclass(frozen=True, slots=True)
class UseRecord:
    """One use of a copy."""

    uri: str
    """URI of the model as the process was given it."""
    seconds: float
    """Time of the use, in seconds since 1970."""


def record_use(copy: Path, uri: str) -> None:
    """Record that a process uses the copy `models--NAME/snapshots/COMMIT` now."""
    record = _file(copy)
    part = record.with_suffix(".part")
    with contextlib.suppress(OSError):
        record.parent.mkdir(exist_ok=True)
        part.write_text(json.dumps({"uri": uri}), encoding="utf-8")
        # Of two processes that write at once, one wins, and the other has nothing left to rename.
        part.replace(record)


def last_use(copy: Path) -> UseRecord | None:
    """Return the last recorded use of a copy; None = there is none that can be read."""
    record = _file(copy)
    try:
        uri = json.loads(record.read_text(encoding="utf-8"))["uri"]
        seconds = record.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return UseRecord(uri, seconds) if isinstance(uri, str) else None


def _file(copy: Path) -> Path:
    return copy.parent.parent / FOLDER / f"{copy.name}.json"
