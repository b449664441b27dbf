"""`give_back_libraries`: drops pages of shared libraries that were read only to load them.

Resolving the symbols of torch's CUDA build reads tables of every library that it is linked to, even without a
GPU: more than 200 MB of files that are never read again count to the process from then on. The engine process
calls it on a CPU. The kernel keeps the pages, as those of any file, and evicts them when memory is short; a
page that is read again is there at once.
"""

import re

from mamba_server.engine.process_memory.memory_map import MemoryMapping, memory_map
from mamba_server.model.checkpoint.mapped_pages import drop

_LIBRARY = re.compile(r"/.*\.so(\.[0-9.]+)?$")


def give_back_libraries() -> None:
    """Drop the pages of libraries that are the same as in their files; without /proc nothing happens."""
    for mapping in memory_map():
        if is_unchanged(mapping):
            drop(mapping.begin, mapping.end)


def is_unchanged(mapping: MemoryMapping) -> bool:
    """Return whether the mapping is of a library, cannot be written and has not been written.

    The loader wrote tables of addresses before they became read-only: if dropped, they would come back as in
    the file, without the addresses.
    """
    return (
        "w" not in mapping.rights and not mapping.anonymous and _LIBRARY.fullmatch(mapping.name) is not None
    )
