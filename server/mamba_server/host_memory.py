"""Main memory that a process of this machine or container may still take.

The engine and the command line read it to plan for a CPU; no other module determines it.
"""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the bytes that both the kernel and the cgroup still allow.

    Raises `OSError` where neither reports them (no Linux).
    """
    free = _kernel(meminfo)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    return min(free, max(limit - used + _reclaimable(cgroup / "memory.stat"), 0))


def _kernel(meminfo: Path) -> int:
    for line in meminfo.read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError(f"{meminfo} has no line MemAvailable")


def _reclaimable(stat: Path) -> int:
    """Return the bytes of file pages that the kernel gives back before it refuses memory."""
    try:
        lines = stat.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    pairs = (line.split() for line in lines)
    return sum(int(pair[1]) for pair in pairs if pair[0] == "inactive_file")


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
