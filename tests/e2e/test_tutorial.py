"""The tutorial in a cluster: each command runs as it stands, in order, and prints what the page shows."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from product import load_images
from screens import screens, shows
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/in-a-cluster.md"


class Terminal:
    """A reader's shell on a machine that reaches the cluster, in the folder of the checkout."""

    def __init__(self, node: Node) -> None:
        self._shell = [*node.network.prefix, "bash", "-c"]
        path = f"{node.binaries}:{ROOT}/.venv/bin:{os.environ['PATH']}"
        self._environ = {**os.environ, "KUBECONFIG": str(node.kubeconfig), "PATH": path}
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self, command: str) -> str:
        """Run a command to its end and return its output; one that ends with & goes on in the background."""
        if command.endswith(" &"):
            self._background.append(
                subprocess.Popen(
                    [*self._shell, command.removesuffix(" &")],
                    cwd=ROOT,
                    env=self._environ,
                    start_new_session=True,
                )
            )
            return ""
        done = subprocess.run(
            [*self._shell, command], cwd=ROOT, env=self._environ, capture_output=True, text=True, timeout=700
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{done.stdout}"
        return done.stdout

    def close(self) -> None:
        """End what runs in the background."""
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)


@pytest.fixture
def terminal(node: Node) -> Iterator[Terminal]:
    load_images(node)
    terminal = Terminal(node)
    yield terminal
    terminal.close()
    if node.get("crd", "mambadeployments.serving.mambaserve.io") is not None:
        node.kubectl("delete", "mdep", "--all", "-n", "default")
    node.helm(
        "uninstall", "mambaserve", "-n", "mambaserve-system", "--ignore-not-found", "--wait", timeout=150
    )


@pytest.mark.timeout(1500)
def test_each_screen_of_the_tutorial_is_what_its_command_prints(terminal: Terminal) -> None:
    commands = screens(PAGE.read_text())
    assert len(commands) > 15
    for command, output in commands:
        printed = terminal.run(command)
        assert shows(output, printed), f"{command} prints\n{printed}\nand not\n{output}"
