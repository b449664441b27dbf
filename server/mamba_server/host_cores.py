"""Number of cores that a process of this machine or container may keep busy.

The engine reads it to choose its threads; no other module determines it.
"""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Return the cores this process may use, at least 1.

    These are the cores it may run on, or, if fewer, the whole cores that its cgroup's quota pays for.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cores if quota is None else max(1, min(cores, int(quota)))


def _quota(cgroup: Path) -> float | None:
    """Return the cores' worth of time that cgroup version 2 or 1 allows; None = no limit."""
    words = _words(cgroup / "cpu.max") or [
        *_words(cgroup / "cpu" / "cpu.cfs_quota_us"),
        *_words(cgroup / "cpu" / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not all(word.isdigit() for word in words) or not int(words[1]):
        return None  # "max" and -1 mean no limit
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []
