"""`memory_map`: the mappings of this process as the kernel lists them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)")


@dataclass(frozen=True, slots=True)
class MemoryMapping:
    """Addresses [begin, end) with equal rights."""

    begin: int
    end: int
    rights: str
    """Access rights, such as `rw-p`."""
    name: str
    """Path of the file, a name in brackets, or empty."""
    anonymous: int
    """Bytes in memory that belong to no file, or differ from it."""


def memory_map(smaps: Path = SMAPS) -> list[MemoryMapping]:
    """Return all mappings of this process; none where there is no such file."""
    try:
        return list(mappings(smaps.read_text("utf-8", errors="replace").splitlines()))
    except OSError:
        return []


def mappings(smaps: Iterable[str]) -> Iterator[MemoryMapping]:
    """Yield the memory mappings that the lines of a /proc/PID/smaps file describe."""
    place: tuple[int, int, str, str] | None = None
    for line in smaps:
        if (match := _MAPPING.fullmatch(line)) is not None:
            begin, end, rights, name = match.groups()
            place = int(begin, 16), int(end, 16), rights, name
        elif place is not None and line.startswith("Anonymous:"):
            yield MemoryMapping(*place, 1024 * int(line.split()[1]))
            place = None
