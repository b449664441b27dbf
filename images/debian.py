"""Base images from Debian packages, for machines that reach a mirror of Debian and no registry of images.

A base is only unpacked: no maintainer script runs, it has no package manager, and the one that images are
shipped on has no shell.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from images.errors import CannotBuild

RELEASE = "bookworm"
PYTHON = ("python3.11", "python3-minimal", "libpython3.11-stdlib")
RUNTIME = (*PYTHON, "base-files", "ca-certificates", "libstdc++6", "netbase", "tzdata")
"""Packages below shipped images: Python, certificates, libraries of wheels, names of ports and time zones."""
BUILD = (*RUNTIME, "python3.11-venv", "python3-pip-whl", "python3-setuptools-whl")
SERVER_BUILD = (*BUILD, "g++")
FINISH = Path(__file__).parent / "finish_root.sh"


def unpack(packages: Sequence[str], target: Path) -> None:
    """Write a tar file of a root with `packages` and their dependencies. Raises CannotBuild."""
    program = shutil.which("mmdebstrap")
    if program is None:
        raise CannotBuild("mmdebstrap is missing: apt-get install --no-install-recommends mmdebstrap")
    command = [
        program, "--quiet", "--variant=extract", f"--include={','.join(packages)}",
        f"--extract-hook={FINISH} \"$1\"", RELEASE, str(target),
    ]  # fmt: skip
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        target.unlink(missing_ok=True)
        raise CannotBuild(f"mmdebstrap failed: {done.stdout.strip()[-1000:]}")
