"""Remains of killed runs are distinguished from living runs, and removed whole."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from testcluster import leftovers
from testcluster.cgroup import ControlGroup
from testcluster.errors import ClusterError

MOUNTINFO = r"""
21 1 0:1 / / rw - ext4 /dev/vda rw
30 21 0:2 / /tmp/mambaserve-node-a/kubelet/pods/x rw - tmpfs tmpfs rw
31 30 0:3 / /tmp/mambaserve-node-a/kubelet/pods/x/deep rw - tmpfs tmpfs rw
32 21 0:4 / /tmp/mambaserve-node-ab/run rw - tmpfs tmpfs rw
33 21 0:5 / /tmp/mambaserve-node-a/with\040space rw - tmpfs tmpfs rw
34 21 0:6 / /tmp/mambaserve-node-a rw - tmpfs tmpfs rw
"""


def test_mount_points_are_listed_inner_ones_first() -> None:
    assert leftovers.mount_points(MOUNTINFO, Path("/tmp/mambaserve-node-a")) == [
        "/tmp/mambaserve-node-a/with space",
        "/tmp/mambaserve-node-a/kubelet/pods/x/deep",
        "/tmp/mambaserve-node-a/kubelet/pods/x",
    ]


def test_a_node_of_this_process_is_not_abandoned(tmp_path: Path) -> None:
    leftovers.claim(tmp_path)

    assert not leftovers.abandoned(tmp_path)


def test_a_node_whose_owner_is_gone_is_abandoned(tmp_path: Path) -> None:
    gone = subprocess.Popen(["sleep", "60"])
    started = leftovers.started(gone.pid)
    owner = {"pid": gone.pid, "started": started}
    (tmp_path / leftovers.OWNER).write_text(json.dumps(owner))
    assert started
    assert not leftovers.abandoned(tmp_path)

    gone.kill()
    gone.wait()

    assert leftovers.abandoned(tmp_path)


def test_another_process_with_the_number_of_the_owner_is_not_the_owner(tmp_path: Path) -> None:
    (tmp_path / leftovers.OWNER).write_text(json.dumps({"pid": os.getpid(), "started": "1"}))

    assert leftovers.abandoned(tmp_path)


@pytest.mark.parametrize("text", ["", "{", None])
def test_a_folder_without_a_readable_owner_is_left_alone(tmp_path: Path, text: str | None) -> None:
    # Its run may be writing the file at this moment.
    if text is not None:
        (tmp_path / leftovers.OWNER).write_text(text)

    assert not leftovers.abandoned(tmp_path)


def test_a_sweep_removes_the_abandoned_folders_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, dead, other = (tmp_path / name for name in ("mambaserve-node-m", "mambaserve-node-d", "other"))
    for folder in (mine, dead, other):
        folder.mkdir()
        leftovers.claim(folder)
    (dead / leftovers.OWNER).write_text(json.dumps({"pid": os.getpid(), "started": "1"}))

    assert leftovers.sweep() == ["mambaserve-node-d"]

    assert mine.is_dir()
    assert other.is_dir()
    assert not dead.exists()


def test_a_step_that_fails_does_not_keep_the_others_from_being_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: ControlGroup) -> None:
        raise ClusterError(f"{self.name} is in use")

    monkeypatch.setattr(ControlGroup, "delete", refuse)
    folder = tmp_path / "mambaserve-node-x"
    folder.mkdir()

    with pytest.raises(ClusterError, match="mambaserve-node-x is in use"):
        leftovers.remove(folder)

    assert not folder.exists()


def test_links_to_logs_of_the_node_go_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setattr(leftovers, "KUBELET_LINKS", links)
    folder = tmp_path / "mambaserve-node-x"
    (links / "mine").symlink_to(folder / "pod-logs" / "a.log")
    (links / "other").symlink_to("/var/log/pods/b.log")
    (links / "file").write_text("")

    leftovers.remove(folder)

    assert sorted(path.name for path in links.iterdir()) == ["file", "other"]


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """Return a folder that looks like the version 1 hierarchies of control groups."""
    for name in ("cpuset", "memory"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n2\n")
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "mem").symlink_to("memory")
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    """Return a folder that looks like the version 2 hierarchy."""
    for name in ("cgroup.controllers", "cgroup.procs", "cgroup.subtree_control"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_group_is_made_in_each_hierarchy_once(version_1: Path) -> None:
    group = ControlGroup("mine", version_1)

    group.create()

    assert not group.unified
    assert group.folders() == [version_1 / "cpuset" / "mine", version_1 / "memory" / "mine"]
    assert all(folder.is_dir() for folder in group.folders())


def test_processes_are_found_at_any_depth(version_1: Path) -> None:
    group = ControlGroup("mine", version_1)
    group.create()
    deep = version_1 / "memory" / "mine" / "pods" / "one"
    deep.mkdir(parents=True)
    (deep / "cgroup.procs").write_text("41\n42\n")

    assert group.processes() == [41, 42]


def test_a_group_goes_with_all_below_it(version_1: Path) -> None:
    group = ControlGroup("mine", version_1)
    group.create()
    (version_1 / "memory" / "mine" / "pods" / "one").mkdir(parents=True)

    group.delete()

    assert not any(folder.exists() for folder in group.folders())
    assert (version_1 / "memory").is_dir()


def test_a_group_that_is_in_use_is_named(version_1: Path) -> None:
    group = ControlGroup("mine", version_1)
    group.create()
    (version_1 / "memory" / "mine" / "in-use").write_text("")

    with pytest.raises(ClusterError, match="memory/mine"):
        group.delete(timeout=0.1)


def test_deleting_a_group_that_is_not_there_is_no_error(version_1: Path) -> None:
    ControlGroup("never-made", version_1).delete()


def test_in_version_2_the_controllers_are_enabled_down_to_the_group(version_2: Path) -> None:
    group = ControlGroup("mine", version_2)

    group.create()

    assert group.unified
    assert group.folders() == [version_2 / "mine"]
    for folder in (version_2, version_2 / "mine"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +cpuset +memory +pids"


def test_a_controller_that_cannot_be_enabled_is_an_error_with_the_folder(version_2: Path) -> None:
    (version_2 / "cgroup.subtree_control").unlink()
    (version_2 / "cgroup.subtree_control").mkdir()

    with pytest.raises(ClusterError, match=r"cannot enable \+cpu"):
        ControlGroup("mine", version_2).create()
