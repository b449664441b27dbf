"""`PieceJournal`: which pieces of a download are on disk, so that a killed download resumes.

`ranged_download` writes it. A line is appended after its bytes are on disk, so that a line never promises
what a crash has lost; a line that was cut off is ignored.
"""

import json
from pathlib import Path
from threading import Lock
from typing import Any


class PieceJournal:
    """Record of the pieces of files that are on disk in one directory.

    Several threads may call its methods.
    """

    def __init__(self, path: Path) -> None:
        """Read the journal, or begin one.

        Raises OSError.
        """
        self._path, self._lock = path, Lock()
        self._pieces: dict[str, set[tuple[int, int]]] = {}
        self._whole: set[str] = set()
        if path.exists():
            for line in path.read_bytes().splitlines():
                self._apply(line)
        self._file = path.open("ab")
        self._file.write(b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def has(self, path: str, start: int, end: int) -> bool:
        """Return whether the piece [start, end) of a file is on disk."""
        return path in self._whole or (start, end) in self._pieces.get(path, ())

    def is_whole(self, path: str) -> bool:
        """Return whether a file is on disk and was compared with its checksum."""
        return path in self._whole

    def add_piece(self, path: str, start: int, end: int) -> None:
        """Record that a piece is on disk. Raises OSError."""
        self._write({"file": path, "piece": [start, end]})

    def add_whole(self, path: str) -> None:
        """Record that a file was compared with its checksum. Raises OSError."""
        self._write({"file": path, "whole": True})

    def forget(self, path: str) -> None:
        """Record that a file has to be fetched again. Raises OSError."""
        self._write({"file": path, "again": True})

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry).encode()
        with self._lock:
            self._apply(line)
            self._file.write(line + b"\n")
            self._file.flush()

    def _apply(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            path = str(entry["file"])
            if "piece" in entry:
                start, end = entry["piece"]
                self._pieces.setdefault(path, set()).add((int(start), int(end)))
            elif "whole" in entry:
                self._whole.add(path)
            else:
                self._whole.discard(path)
                self._pieces.pop(path, None)
        except (ValueError, KeyError, TypeError):
            return  # the last line of a process that was killed
