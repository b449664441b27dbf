"""The tree of the release before this checkout, for tests of an upgrade, and its operator as a process.

Before the first release there is none to upgrade from. Then it is the tree before the last change of the
operator, the API or the chart, which is what a cluster that follows the main branch runs.
MAMBASERVE_PREVIOUS names another commit or tag.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from release.checkout import read_checkout
from release.errors import CannotRelease

ROOT = Path(__file__).parents[2]
CODE = ("libs", "operator", "server", "cli", "kernels")
TREE = (*CODE, "charts", "examples")
INSTALLED = ("charts", "libs/mamba_api", "operator")
"""Folders whose change makes a version that is upgraded."""


def previous_release(target: Path) -> str:
    """Unpack the tree into `target` and return its tag or commit; skip the test where git has no history."""
    try:
        revision = os.environ.get("MAMBASERVE_PREVIOUS") or _previous()
        archive = _git("archive", revision, *TREE)
    except (CannotRelease, subprocess.CalledProcessError) as error:
        pytest.skip(f"there is no history to find an earlier version in: {error}")
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    return revision


@contextmanager
def previous_operator(tree: Path, kubeconfig: Path, log: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Run the operator of that tree for the length of the block."""
    paths = os.pathsep.join(str(tree / folder) for folder in CODE)
    command = [sys.executable, "-m", "mamba_cli", "operator", "--kubeconfig", str(kubeconfig)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--liveness-port", "0", *arguments], cwd=tree, stdout=out, stderr=out,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _previous() -> str:
    if last := read_checkout(ROOT).last:
        return f"v{last}"
    change = _git("log", "-1", "--format=%H", "--", *INSTALLED).decode().strip()
    return f"{change}~1"


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout
