"""`give_back_libraries`: pages of shared libraries that only their loading read.

Resolving the symbols of torch's CUDA build reads tables of every library it is linked to, also where no GPU
is: more than 200 MB of files that nobody looks at again count to the process from then on. Called by the
engine process on a CPU. The kernel has the pages still, as it has those of any file, and takes them when it
needs the room; what is read again is there at once.
"""

import re

from mamba_server.engine.process_memory.memory_map import MemoryMapping, memory_map
from mamba_server.model.checkpoint.mapped_pages import drop

_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?$")


def give_back_libraries() -> None:
    """Drop the pages of libraries that are as they lie in their files; without /proc nothing happens."""
    for mapping in memory_map():
        if is_unchanged(mapping):
            drop(mapping.begin, mapping.end)


def is_unchanged(mapping: MemoryMapping) -> bool:
    """Whether it is of a library, cannot be written and has not been.

    Tables of addresses were written by the loader before they became unwritable: dropped, they would come
    back as the file has them, without the addresses.
    """
    return (
        "w" not in mapping.rights and not mapping.anonymous and _LIBRARY.fullmatch(mapping.name) is not None
    )
