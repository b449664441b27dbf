"""A git checkout with what a release is built from and one module of each package, for its tests."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from release.stamp import PLACES

ROOT = Path(__file__).parents[2]
SECONDS = "1790000000"
"""Time of its commits."""
NOTES = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- new\n\n## 0.1.0 (2026-12-01)\n\n- first\n"


def small_checkout(folder: Path) -> Path:
    """Make the checkout in `folder`, with the version 0.1.0 and its tag, and return the folder."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    modules = [f"{package}/__init__.py" for package in wheel["packages"]]
    names = [name for name, _ in PLACES] + modules + ["README.md", "LICENSE", "manifests/namespace.yaml"]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("charts", "crds", "requirements"):
        shutil.copytree(ROOT / name, folder / name, dirs_exist_ok=True)
    (folder / "CHANGELOG.md").write_text(NOTES)
    pyproject = folder / "pyproject.toml"
    version = tomllib.loads(pyproject.read_text())["project"]["version"]
    pyproject.write_text(pyproject.read_text().replace(f'\nversion = "{version}"', '\nversion = "0.1.0"'))
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "all")
    git(folder, "tag", "v0.1.0")
    return folder


def git(folder: Path, *arguments: str) -> None:
    """Run git in `folder`, without the settings and hooks of this machine."""
    environment = {
        **os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_AUTHOR_DATE": f"@{SECONDS} +0000",
        "GIT_COMMITTER_DATE": f"@{SECONDS} +0000",
    }  # fmt: skip
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=/dev/null")
    command = ["git", *identity, *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
