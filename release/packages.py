"""Builds the source distribution and the wheel, the same bytes each time. `build` and the tests call it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from release.errors import CannotRelease

_LAST_LINES = 10
"""Lines of a failed program that its error repeats."""


def build_packages(sources: Path, output: Path, seconds: int) -> None:
    """Build the source distribution, and the wheel out of it, as installers do that get no wheel.

    Args:
        sources: folder with pyproject.toml.
        output: folder of the two files.
        seconds: time of every file in them, in seconds since 1970.

    Raises CannotRelease.
    """
    environment = {"SOURCE_DATE_EPOCH": str(seconds)}
    build = (sys.executable, "-m", "hatchling", "build", "-d", str(output), "-t")
    with tempfile.TemporaryDirectory() as temporary:
        run_program([*build, "sdist"], sources, environment)
        [archive] = output.glob("*.tar.gz")
        run_program(["tar", "-xzf", str(archive), "-C", temporary], sources)
        [folder] = Path(temporary).iterdir()
        run_program([*build, "wheel"], folder, environment)


def run_program(
    command: list[str], folder: Path, environment: dict[str, str] | None = None, *, shown: bool = False
) -> str:
    """Run a program in `folder` and return its output. Raises CannotRelease with its last lines.

    Args:
        command: the program and its arguments.
        folder: the working directory.
        environment: variables beside those of this process.
        shown: whether the user sees its standard error at once, as of a program that takes minutes.
    """
    ended = subprocess.run(
        command, check=False, cwd=folder, env={**os.environ, **(environment or {})}, text=True,
        stdout=subprocess.PIPE, stderr=None if shown else subprocess.PIPE,
    )  # fmt: skip
    if ended.returncode:
        last = "\n".join(f"{ended.stdout}\n{ended.stderr or ''}".strip().splitlines()[-_LAST_LINES:])
        raise CannotRelease(f"`{' '.join(command[:4])} …` ended with {ended.returncode}:\n{last}")
    return ended.stdout
