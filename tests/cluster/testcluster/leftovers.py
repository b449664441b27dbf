"""Removes what a test node leaves on the machine: at its end, and for runs that were killed before theirs.

A node writes who owns it into its folder first. What is found there belongs to that node and to nothing
else: its network namespace, its control group, the mounts below its folder, its containers' shims.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from testcluster.cgroup import ControlGroup
from testcluster.errors import ClusterError, CommandFailed
from testcluster.network import NetworkNamespace, run

PREFIX = "mambaserve-node-"
OWNER = "owner.json"
LOCK = "mambaserve-node.lock"
KUBELET_LINKS = Path("/var/log/containers")


def claim(folder: Path) -> None:
    """Record that this process owns the node in `folder`."""
    owner = {"pid": os.getpid(), "started": started(os.getpid())}
    (folder / OWNER).write_text(json.dumps(owner))


def started(pid: int) -> str:
    """Return the start of a process in ticks, empty if it is gone; with the id it is unique."""
    try:
        # The name, second, may hold anything and ends with the last parenthesis.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def abandoned(folder: Path) -> bool:
    """Return whether the owner of a node's folder is gone."""
    try:
        owner = json.loads((folder / OWNER).read_text())
    except (OSError, ValueError):
        return False
    return started(int(owner["pid"])) != str(owner["started"])


def sweep() -> list[str]:
    """Remove the nodes of killed runs and return their names."""
    temporary = Path(tempfile.gettempdir())
    with (temporary / LOCK).open("w") as lock:
        # Two runs that begin together would take the same leftovers out of each other's hands.
        fcntl.flock(lock, fcntl.LOCK_EX)
        folders = sorted(path for path in temporary.glob(f"{PREFIX}*") if abandoned(path))
        for folder in folders:
            remove(folder)
    return [folder.name for folder in folders]


def remove(folder: Path, *, keep_files: bool = False) -> None:
    """End a node's remaining processes and remove everything it created, its folder last.

    Errors are raised after everything else has been tried.
    """
    network, group = NetworkNamespace(folder.name), ControlGroup(folder.name)
    with contextlib.ExitStack() as last_first:
        if not keep_files:
            last_first.callback(shutil.rmtree, folder, ignore_errors=True)
        last_first.callback(_unlink_logs, folder)
        last_first.callback(network.delete)
        last_first.callback(group.delete)
        last_first.callback(_unmount, folder)
        last_first.callback(_kill, lambda: {*network.processes(), *group.processes(), *shims(folder)})


def _unmount(folder: Path) -> None:
    for point in mount_points(Path("/proc/self/mountinfo").read_text(), folder):
        # Several mounts may lie on one point, and unmounting the outer takes the inner along.
        with contextlib.suppress(CommandFailed):
            run("umount", "--lazy", point)


def _unlink_logs(folder: Path) -> None:
    if KUBELET_LINKS.is_dir():
        for link in KUBELET_LINKS.iterdir():
            if link.is_symlink() and Path(os.readlink(link)).is_relative_to(folder):
                link.unlink(missing_ok=True)


def shims(folder: Path) -> list[int]:
    """Return the ids of the container shims: outside of every group, they name their node's socket."""
    socket = str(folder / "containerd.sock").encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if Path(os.fsdecode(words[0])).name.startswith("containerd-shim") and socket in words:
                pids.append(int(path.parent.name))
    return pids


def mount_points(mountinfo: str, folder: Path) -> list[str]:
    """Return the mount points below a folder, inner ones first, from the text of /proc/self/mountinfo.

    Pure.
    """
    points = [_unescaped(line.split()[4]) for line in mountinfo.splitlines() if line]
    return sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True)


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _kill(processes: Callable[[], set[int]], *, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while left := processes() - {os.getpid()}:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(left)} do not end")
        time.sleep(0.05)
