"""The control group all pods of one test node live under, in version 1 and version 2 hierarchies.

A group of its own per node, because a kubelet removes what it does not know below its root: two nodes
under the usual /kubepods would kill each other's pods.
"""

import contextlib
import errno
import os
import time
from pathlib import Path

from testcluster.errors import ClusterError

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("cpu", "cpuset", "memory", "pids")


class ControlGroup:
    """`/NAME` in every hierarchy."""

    def __init__(self, name: str, root: Path = ROOT) -> None:
        self.name = name
        self._root = root
        self.unified = (root / "cgroup.controllers").exists()

    def folders(self) -> list[Path]:
        """Return the group's folder in each hierarchy."""
        if self.unified:
            return [self._root / self.name]
        return [
            hierarchy / self.name
            for hierarchy in sorted(self._root.iterdir())
            # Links such as cpu -> cpu,cpuacct lead to folders that are listed anyway.
            if not hierarchy.is_symlink() and (hierarchy / "cgroup.procs").exists()
        ]

    def create(self) -> None:
        """Create the group. Raises ClusterError when a controller cannot be had."""
        if self.unified:
            self._enable(self._root)
        for folder in self.folders():
            folder.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                # Version 1 leaves these empty in a new group, and nothing can run in it until they are set.
                if (own := folder / setting).exists() and not own.read_text().strip():
                    own.write_text((folder.parent / setting).read_text())
        if self.unified:
            self._enable(self._root / self.name)

    def processes(self) -> list[int]:
        """Return the ids of the processes in the group and below it."""
        pids: set[int] = set()
        for folder in self.folders():
            # Not by glob: groups come and go while we look, which os.walk passes over.
            for path, _, _ in os.walk(folder):
                with contextlib.suppress(OSError):
                    pids.update(int(pid) for pid in Path(path, "cgroup.procs").read_text().split())
        return sorted(pids)

    def delete(self, *, timeout: float = 5.0) -> None:
        """Remove the group and all below it; its processes must have ended."""
        deadline = time.monotonic() + timeout
        while left := [folder for folder in self.folders() if folder.exists() and not _removed(folder)]:
            if time.monotonic() > deadline:
                raise ClusterError(f"control groups are still in use: {', '.join(map(str, left))}")
            time.sleep(0.05)

    def _enable(self, folder: Path) -> None:
        controllers = " ".join(f"+{controller}" for controller in NEEDED)
        try:
            (folder / "cgroup.subtree_control").write_text(controllers)
        except OSError as error:
            hint = (
                " Inside a container, move the processes of its root group into a child group first."
                if error.errno == errno.EBUSY
                else ""
            )
            raise ClusterError(f"{folder}: cannot enable {controllers}: {error}.{hint}") from error


def _removed(folder: Path) -> bool:
    try:
        for path, _, _ in os.walk(folder, topdown=False):
            Path(path).rmdir()
    except OSError:
        return False
    return True
