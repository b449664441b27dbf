"""Reads a checkout from git: its facts, its version and its files. `build` calls it."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from packaging.version import Version

from release.errors import CannotRelease
from release.version import RELEASE, Checkout


def read_checkout(root: Path) -> Checkout:
    """Return the facts about the checkout at `root`. Raises CannotRelease."""
    commit, seconds = _git(root, "log", "-1", "--format=%H %ct").split()
    if _git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise CannotRelease(
            "the history of this clone is cut, so commits cannot be counted: git fetch --unshallow --tags"
        )
    before = _versions(_git(root, "tag", "--merged", "HEAD", "--list", "v*"))
    last = before[-1] if before else ""
    span = f"v{last}..HEAD" if last else "HEAD"
    return Checkout(
        commit,
        int(seconds),
        tuple(reversed(_versions(_git(root, "tag", "--points-at", "HEAD", "--list", "v*")))),
        last,
        int(_git(root, "rev-list", "--count", span)),
        bool(_git(root, "status", "--porcelain").strip()),
    )


def declared_version(root: Path) -> str:
    """Return the version in pyproject.toml."""
    document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return str(document["project"]["version"])


def copy_files(root: Path, target: Path) -> None:
    """Copy what git has or would add, so that ignored files and the caches of tools stay out."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        source, copy = root / name, target / name
        if not source.is_file() or source.is_symlink():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        # Git knows of one mode only; the others would come from the umask of whoever made the checkout.
        copy.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _versions(tags: str) -> list[str]:
    names = (tag.removeprefix("v") for tag in tags.split())
    return sorted((name for name in names if RELEASE.fullmatch(name)), key=Version)


def _git(root: Path, *arguments: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True
        ).stdout
    except FileNotFoundError as error:
        raise CannotRelease("git is missing: a release is built from a checkout") from error
    except subprocess.CalledProcessError as error:
        raise CannotRelease(f"git {arguments[0]}: {error.stderr.strip()}") from error
