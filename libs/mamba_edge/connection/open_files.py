"""How many connections the limit of open files has room for: who lacks a file takes no connection at all.

The limit that a process is started with is often a thousand, and the one that it may raise that to much
larger. Used by the HTTP server.
"""

import resource

from mamba_telemetry.logs import get_logger

log = get_logger(__name__)

OTHERS = 256
"""Files that a process needs beside its connections."""
FEWEST = 16


def connections_allowed(wanted: int, more_files: int = 0) -> int:
    """Raise the limit of open files for so many connections and `more_files`; how many of the connections
    there is room for, `FEWEST` at least."""
    files = wanted + more_files + OTHERS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed >= files:
        return wanted
    fits = max(min(wanted, FEWEST), allowed - more_files - OTHERS)
    log.warning(
        "few_open_files", connections=fits, wanted=wanted, allowed=allowed,
        remedy="raise the hard limit of open files (ulimit -Hn), or lower --max-connections",
    )  # fmt: skip
    return fits
