"""A Triton that is not the lock's, in a folder beside the other caches: no environment is changed."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OLDEST = "3.6.0"
"""The oldest that images with CUDA bring, and that the kernels have to compile with."""


class TritonMissing(Exception):
    """Error: the other Triton cannot be had; the text says why."""


def fetched(version: str) -> Path:
    """Return the folder with that version, downloaded if it is not there: some 190 MB, 640 unpacked.

    Raises TritonMissing.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mambaserve" / "triton"
    target = root / f"{version}-cp{sys.version_info.major}{sys.version_info.minor}"
    if not target.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".installing-", dir=root))
        try:
            _install(version, work)
            if not target.is_dir():  # another test run may have been faster
                work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _install(version: str, folder: Path) -> None:
    if importlib.util.find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    elif uv := shutil.which("uv"):
        command = [uv, "pip", "install", "--quiet", "--python", sys.executable]
    else:
        raise TritonMissing(f"Triton {version} cannot be installed: there is neither pip nor uv")
    got = subprocess.run(
        [*command, "--no-deps", "--target", str(folder), f"triton=={version}"], capture_output=True, text=True
    )
    if got.returncode:
        raise TritonMissing(f"Triton {version} cannot be installed: {got.stderr.strip()[-300:]}")
