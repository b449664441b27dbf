"""Notices that a file changed. Pure comparison of stamps; the caller decides when to look."""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a file looked like. `digest` empty = it cannot be read."""

    path: Path
    digest: str

    @classmethod
    def of(cls, path: Path) -> "Stamp":
        """Look at the file now. The content counts: editors touch and rename without changing it."""
        try:
            return cls(path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError:
            return cls(path, "")


def changed(before: list[Stamp], after: list[Stamp]) -> list[Path]:
    """Files whose content differs and can be read: one that is just being replaced is no change yet."""
    known = {stamp.path: stamp.digest for stamp in before}
    return [stamp.path for stamp in after if stamp.digest and stamp.digest != known.get(stamp.path)]


def settled(before: list[Stamp], after: list[Stamp]) -> list[Stamp]:
    """The stamps to compare with next time: an unreadable file keeps its last known content."""
    known = {stamp.path: stamp for stamp in before}
    return [stamp if stamp.digest else known.get(stamp.path, stamp) for stamp in after]
