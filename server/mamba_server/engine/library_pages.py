"""`give_back_libraries`: pages of shared libraries that only their loading read.

Resolving the symbols of torch's CUDA build reads tables of every library it is linked to, also where no GPU
is: more than 200 MB of files that nobody looks at again count to the process from then on. Called by the
engine process on a CPU. The kernel has the pages still, as it has those of any file, and takes them when it
needs the room; what is read again is there at once.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mamba_server.model.mapped_pages import drop

_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)")
_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?$")


def give_back_libraries() -> None:
    """Drop the pages of libraries that are as they lie in their files; without /proc nothing happens."""
    try:
        smaps = _SMAPS.read_text("utf-8", errors="replace")
    except OSError:
        return
    for begin, end in unchanged(smaps.splitlines()):
        drop(begin, end)


def unchanged(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """First address and end of each mapping of a library that cannot be written and has not been.

    Tables of addresses were written by the loader before they became unwritable: dropped, they would come
    back as the file has them, without the addresses.
    """
    place: tuple[int, int] | None = None
    for line in smaps:
        if (mapping := _MAPPING.fullmatch(line)) is not None:
            begin, end, rights, file = mapping.groups()
            place = None
            if "w" not in rights and _LIBRARY.fullmatch(file):
                place = int(begin, 16), int(end, 16)
        elif place is not None and line.startswith("Anonymous:"):
            if line.split()[1] == "0":
                yield place
            place = None
