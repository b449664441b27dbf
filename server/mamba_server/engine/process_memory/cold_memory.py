"""`put_imports_aside`: what importing torch wrote into memory becomes the private copy of a file.

Its CUDA build fills 300 MB while it is loaded, also where no GPU is: tables of libraries that are never
called, modules that are never used. In a file that nobody else sees the kernel can take the pages when it
needs the room, and only those that are looked at again count to the process. Called by the engine process on
a CPU before there is a second thread. See docs/notes/engine.md.
"""

import gc
import tempfile
from pathlib import Path

from mamba_kernels.cpu.library import Library
from mamba_server.engine.process_memory.memory_map import MemoryMapping, memory_map

LEAST = 1 << 20
"""Bytes of memory that are worth a mapping of their own."""
_TASKS = Path("/proc/self/task")


def put_imports_aside(library: Library | None) -> int:
    """Bytes that are a file's now; 0 where there is a second thread, no disk to put them on, or no library.

    What is in memory keeps its addresses and its bytes. The file has no name and goes with the process.
    """
    if library is None or not _TASKS.is_dir() or len(list(_TASKS.iterdir())) > 1:
        return 0
    # A search for garbage would look at every object, and writes to those it looks at.
    gc.collect()
    gc.freeze()
    done = 0
    try:
        with tempfile.TemporaryFile(prefix="mambaserve-") as file:
            if not library.is_on_disk(file.fileno()):
                return 0
            for mapping in filter(is_worth_it, memory_map()):
                done += library.put_aside(file.fileno(), done, mapping.begin, mapping.end)
    except OSError:  # there is no place for files
        return done
    return done


def is_worth_it(mapping: MemoryMapping) -> bool:
    """Whether it is memory of no file, large, and mostly in use."""
    return (
        mapping.rights == "rw-p"
        and mapping.name in ("", "[heap]")
        and mapping.anonymous >= LEAST
        and 2 * mapping.anonymous >= mapping.end - mapping.begin
    )
