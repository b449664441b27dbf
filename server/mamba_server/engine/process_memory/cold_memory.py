"""`put_imports_aside`: moves the memory that importing torch filled into the private copy of a file.

torch's CUDA build fills 300 MB while it is loaded, even without a GPU: tables of libraries that are never
called, modules that are never used. From a file that no other process sees, the kernel can evict the pages
when memory is short, and only pages that are read again count to the process. The engine process calls it on
a CPU before it has a second thread. See docs/notes/engine.md.
"""

import gc
import tempfile
from pathlib import Path

from mamba_kernels.cpu.library import Library
from mamba_server.engine.process_memory.memory_map import MemoryMapping, memory_map

MIN_BYTES = 1 << 20
"""Least bytes of memory for which a mapping is moved."""
_TASKS = Path("/proc/self/task")


def put_imports_aside(library: Library | None) -> int:
    """Move the imports' memory into a file; return the bytes that were moved.

    0 with a second thread, without a disk, or without a library. Memory keeps its addresses and contents. The
    file has no name and is deleted with the process.
    """
    if library is None or not _TASKS.is_dir() or len(list(_TASKS.iterdir())) > 1:
        return 0
    # A garbage collection would visit every object, and writes to those that it visits.
    gc.collect()
    gc.freeze()
    moved = 0
    try:
        with tempfile.TemporaryFile(prefix="mambaserve-") as file:
            if not library.is_on_disk(file.fileno()):
                return 0
            for mapping in filter(is_worth_it, memory_map()):
                moved += library.put_aside(file.fileno(), moved, mapping.begin, mapping.end)
    except OSError:  # no place for files
        return moved
    return moved


def is_worth_it(mapping: MemoryMapping) -> bool:
    """Return whether the mapping is memory without a file, large, and mostly in use."""
    return (
        mapping.rights == "rw-p"
        and mapping.name in ("", "[heap]")
        and mapping.anonymous >= MIN_BYTES
        and 2 * mapping.anonymous >= mapping.end - mapping.begin
    )
