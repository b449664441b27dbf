"""Programs from Debian's packages, unpacked beside the other caches: nothing is installed, needs no root."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class PackageMissing(Exception):
    """Error: the package cannot be had; the text says why."""


def unpacked(*packages: str) -> Path:
    """Return the folder with the files of these packages, named after the first and a digest of all.

    Raises PackageMissing: this is no Debian, its list of packages is unknown, or nothing can be downloaded.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise PackageMissing("this is no Debian")
    checksums = _checksums(packages)
    for package in packages:
        if package not in checksums:
            raise PackageMissing(f"Debian's package {package} is unknown; `apt-get update` would show it")
    digests = hashlib.sha256("".join(checksums[package] for package in packages).encode())
    cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mambaserve" / packages[0]
    target = cache_root / digests.hexdigest()[:16]
    if not target.is_dir():
        cache_root.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=cache_root))
        try:
            _unpack(packages, work)
            if not target.is_dir():  # another test run may have been faster
                (work / "tree").rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _checksums(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of the newest version of each package that is known.

    In one command: where no list is kept in a binary form, each takes most of a processor second.
    """
    output = subprocess.run(["apt-cache", "show", *packages], capture_output=True, text=True).stdout
    checksums: dict[str, str] = {}
    package = ""
    for line in output.splitlines():
        name, _, value = line.partition(": ")
        if name == "Package":
            package = value
        elif name == "SHA256":
            checksums.setdefault(package, value)
    return checksums


def _unpack(packages: tuple[str, ...], work: Path) -> None:
    got = subprocess.run(["apt-get", "download", "-qq", *packages], cwd=work, capture_output=True, text=True)
    if got.returncode:
        raise PackageMissing(f"{packages[0]} cannot be downloaded: {got.stderr.strip()[-300:]}")
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(work / "tree")], check=True)
