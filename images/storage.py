"""buildah with a store of its own: other tools of the machine neither see nor remove what is built here."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from images.errors import CannotBuild

CERTIFICATES = Path("/etc/ssl/certs")
MOST_LAYERS = 120
"""Kept from build to build. A build leaves some twenty; at the bound all of them go."""


class Storage:
    """Layers and images below one folder.

    Used as a context, which one process enters at a time: the locks of buildah hold for one command, and a
    build that failed, or begins at the bound, removes what others stand on.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> Self:
        program = shutil.which("buildah")
        if program is None:
            raise CannotBuild("buildah is missing: apt-get install --no-install-recommends buildah")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / ".lock").open("w")
        self._wait()
        # Plain copies work everywhere; overlays are quicker and do not stack on another overlay.
        below = _filesystem(self.folder)
        driver = "vfs" if below == "overlay" or os.geteuid() != 0 else "overlay"
        self._command = [
            program, "--root", str(self.folder / driver), "--runroot", str(self.folder / "run"),
            "--storage-driver", driver,
        ]  # fmt: skip
        if len(self._run("images", "--all", "--quiet").stdout.split()) > MOST_LAYERS:
            self._run("rmi", "--all", "--force")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._run("rm", "--all", check=False)
        self._lock.close()

    def _wait(self) -> None:
        """Wait until no other process builds."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("images: waiting for another build", file=sys.stderr, flush=True)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def has(self, image: str) -> bool:
        return not self._run("inspect", "--type", "image", image, check=False).returncode

    def add_base(self, name: str, root: Path) -> None:
        """Turn the tar file `root` into the image `name` of one layer."""
        container = self._run("from", "scratch").stdout.strip()
        self._run("add", "--quiet", container, str(root), "/")
        self._run("commit", "--quiet", "--rm", container, name)

    def build(
        self, dockerfile: Path, ignored: Path, context: Path, target: str, arguments: Mapping[str, str]
    ) -> str:
        """Build the stage `target` and return the image's name; the output goes to standard error."""
        name = f"localhost/mambaserve-{target}:latest"
        command = ["build", "--isolation", "chroot", "--layers", "--target", target, "--tag", name]
        command += ["--file", str(dockerfile), "--ignorefile", str(ignored)]
        for key, value in arguments.items():
            command += ["--build-arg", f"{key}={value}"]
        # Where packages come through a proxy, its certificate is among the machine's own.
        if CERTIFICATES.is_dir():
            command += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        done = subprocess.run(
            [*self._command, *command, str(context)], check=False, stdout=sys.stderr.fileno()
        )
        if done.returncode:
            raise CannotBuild(f"buildah failed to build {target}; what it said is above")
        return name

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Mount the image and yield the folder of its files, read-only."""
        container = self._run("from", image).stdout.strip()
        try:
            yield Path(self._run("mount", container).stdout.strip())
        finally:
            self._run("rm", container)

    def export(self, image: str, path: Path, name: str) -> None:
        """Write an OCI archive that carries `name`; a failed write leaves no file."""
        aside = path.with_suffix(".new")
        self._run("push", "--quiet", image, f"oci-archive:{aside}:{name}")
        aside.rename(path)

    def _run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*self._command, *arguments], check=False, capture_output=True, text=True)
        if check and done.returncode:
            raise CannotBuild(f"buildah {arguments[0]} failed: {done.stderr.strip()[-1000:]}")
        return done


def _filesystem(folder: Path) -> str:
    """Return the type of the file system that `folder` lies on."""
    done = subprocess.run(
        ["stat", "--file-system", "--format", "%T", str(folder)], check=False, capture_output=True, text=True
    )
    return "overlay" if "overlay" in done.stdout else done.stdout.strip()
