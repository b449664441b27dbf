"""A run that is killed leaves a whole cluster on the machine; the next run removes it and nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testcluster import leftovers
from testcluster.host_view import HOST_IMAGE
from testcluster.network import NetworkNamespace
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

RUN = f"""
import sys, time
from testcluster.build import ensure
from testcluster.node import running_node
with running_node(ensure()) as node:
    node.kubectl("run", "sleeper", "--image={HOST_IMAGE}", "--command", "--", "sleep", "600")
    node.kubectl("wait", "pod", "sleeper", "--for=condition=Ready", "--timeout=30s")
    print(node.folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def killed(node: Node) -> Iterator[Path]:
    """Yield the folder of a second node whose run was killed while a pod ran on it."""
    environ = {**os.environ, "PYTHONPATH": str(Path(leftovers.__file__).parents[1])}
    with subprocess.Popen([sys.executable, "-c", RUN], env=environ, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            folder = Path(run.stdout.readline().strip())
            assert folder.is_dir()
        finally:
            run.send_signal(signal.SIGKILL)
    yield folder
    if folder.is_dir():
        leftovers.remove(folder)


def mounts_below(folder: Path) -> list[str]:
    return leftovers.mount_points(Path("/proc/self/mountinfo").read_text(), folder)


def test_a_killed_run_is_swept_away_and_the_running_one_stays(
    node: Node, namespace: str, killed: Path
) -> None:
    # The components died with their run; the pod and its guardian did not.
    assert leftovers.shims(killed)
    assert mounts_below(killed)
    assert NetworkNamespace(killed.name).path.exists()

    swept = leftovers.sweep()

    assert swept == [killed.name]
    assert not killed.exists()
    assert not NetworkNamespace(killed.name).path.exists()
    assert leftovers.shims(killed) == []
    assert mounts_below(killed) == []
    assert not list(Path("/sys/fs/cgroup").glob(f"*/{killed.name}"))
    assert all(component.running for component in node.components)
    node.kubectl("run", "after", f"--image={HOST_IMAGE}", "-n", namespace, "--command", "--", "sleep", "60")
    node.kubectl("wait", "pod", "after", "-n", namespace, "--for=condition=Ready", "--timeout=30s")
