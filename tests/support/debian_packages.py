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
    digests = hashlib.sha256()
    for package in packages:
        package_facts = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True)
        checksums = [
            line.split()[1] for line in package_facts.stdout.splitlines() if line.startswith("SHA256:")
        ]
        if not checksums:
            raise PackageMissing(f"Debian's package {package} is unknown; `apt-get update` would show it")
        digests.update(checksums[0].encode())
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


def _unpack(packages: tuple[str, ...], work: Path) -> None:
    got = subprocess.run(["apt-get", "download", "-qq", *packages], cwd=work, capture_output=True, text=True)
    if got.returncode:
        raise PackageMissing(f"{packages[0]} cannot be downloaded: {got.stderr.strip()[-300:]}")
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(work / "tree")], check=True)
