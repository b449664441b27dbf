"""`python -m images.build TARGET`: an image as an OCI archive, made once for each state of its sources.

Archives are kept in the user's cache under a name that follows from the Dockerfile, the pins and the sources.
`--base` takes a pair of images to stand on; without it both are made of Debian packages.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from images import bill, debian
from images.errors import CannotBuild
from images.storage import Storage
from release.version import tag_of

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "images/Dockerfile"
IGNORED = ROOT / "images/.containerignore"
SOURCES = ("libs", "operator", "server", "cli", "kernels", "requirements", "images")
FILES = ("pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Target:
    """One image."""

    name: str
    """Name of the stage in the Dockerfile."""
    repository: str
    """Name of the image in charts and manifests."""
    build: Sequence[str]
    """Debian packages of the stages that build it."""
    runtime: Sequence[str]
    """Debian packages that it is shipped on."""


TARGETS = {
    "control": Target("control", "ghcr.io/mambaserve/mambaserve-control-plane", debian.BUILD, debian.RUNTIME),
    "server": Target("server", "ghcr.io/mambaserve/mambaserve", debian.SERVER_BUILD, debian.RUNTIME),
}


@dataclass(frozen=True)
class Bases:
    """Images that the stages stand on; see the Dockerfile."""

    build: str
    runtime: str


def digest(target: Target, bases: Bases | None) -> str:
    """Return the digest of everything that determines the image, except the state of Debian's packages."""
    made = hashlib.sha256(repr((target, bases)).encode())
    for path in sorted(_context()):
        made.update(f"\0{path.relative_to(ROOT)}\0{path.stat().st_mode & 0o111}\0".encode())
        made.update(path.read_bytes())
    return made.hexdigest()[:16]


def _context() -> Iterator[Path]:
    yield from (ROOT / name for name in FILES)
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.name != "dev.lock":
                yield path


def version() -> str:
    """Return the images' tag, which follows from the version of the sources."""
    return tag_of(str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]))


def cache_folder() -> Path:
    """Return the folder of archives and layers: `$XDG_CACHE_HOME/mambaserve/images`."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base, "mambaserve/images")


def cached(target: Target, bases: Bases | None = None) -> Path | None:
    """Return the archive of this state of the sources, or None if it has not been built before."""
    path = _archive(target, bases)
    return path if path.is_file() else None


def _archive(target: Target, bases: Bases | None) -> Path:
    return cache_folder() / f"{target.name}-{digest(target, bases)}.tar"


def ensure_built(target: Target, bases: Bases | None = None) -> Path:
    """Return the path of the archive, built if necessary, with its bill of materials next to it.

    Archives of other states of the sources are removed. Raises CannotBuild.
    """
    path = _archive(target, bases)
    if path.is_file():
        return path
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    with Storage(folder / "layers") as storage:
        if path.is_file():  # by the build that this one has waited for
            return path
        bases = bases or _debian_bases(storage, target)
        _say(f"building {target.name}")
        image = storage.build(
            DOCKERFILE, IGNORED, ROOT, target.name,
            {"BUILD_BASE": bases.build, "RUNTIME_BASE": bases.runtime},
        )  # fmt: skip
        _say("writing the archive and the bill of materials")
        with storage.mounted(image) as root:
            (path.with_suffix(".cdx.json")).write_text(bill.of_materials(target.repository, root))
        storage.export(image, path, f"{target.repository}:{version()}")
    for old in folder.glob(f"{target.name}-*"):
        if not old.name.startswith(path.stem):
            old.unlink()
    return path


def _debian_bases(storage: Storage, target: Target) -> Bases:
    found = []
    for role, packages in (("build", target.build), ("runtime", target.runtime)):
        # The script that finishes a root decides what is in it, too.
        script = debian.FINISH.read_bytes()
        state = hashlib.sha256(repr((debian.RELEASE, packages, script)).encode()).hexdigest()[:16]
        name = f"localhost/mambaserve-{role}:{state}"
        if not storage.has(name):
            _say(f"unpacking Debian {debian.RELEASE} for {role}")
            tar = storage.folder / f"{role}.tar"
            debian.unpack(packages, tar)
            storage.add_base(name, tar)
            tar.unlink()
        found.append(name)
    return Bases(*found)


def _say(what: str) -> None:
    print(f"images: {what}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the path of the archive; the exit code is 1 where none can be built."""
    parser = argparse.ArgumentParser(
        prog="python -m images.build", description="Build an image of mambaserve."
    )
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument(
        "--base", nargs=2, metavar=("BUILD", "RUNTIME"),
        help="images to stand on, such as python:3.11-bookworm and python:3.11-slim-bookworm",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="also copy the archive there")
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        path = ensure_built(TARGETS[options.target], Bases(*options.base) if options.base else None)
        if options.output:
            shutil.copyfile(path, options.output)
    except (CannotBuild, OSError, subprocess.SubprocessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _say(f"{path.stat().st_size / 1e6:.0f} MB compressed after {time.monotonic() - begin:.0f} s")
    print(options.output or path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
