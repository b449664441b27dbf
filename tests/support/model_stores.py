"""A real S3 (moto, from PyPI) and a real OCI registry (Debian's docker-registry), for tests of model sources.

Both are kept in the cache beside other programs, and never in an environment. A test that wants one is
skipped where it cannot be had, and says why.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from debian_packages import PackageMissing, unpacked
from eventually import wait_until
from testcluster.free_ports import free_port
from testcluster.toolchain import installers

MOTO = "moto[server]==5.2.5"
USER, PASSWORD = "reader", "secret"
_HASH = "$2b$04$8MlS3F50m8xokHA2C.9FYOxJPEyopFZrNkLp0PtvW2RDCkYI6t0ay"
"""The password as htpasswd keeps it."""
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def _moto() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mambaserve" / "moto"
    target = cache / MOTO.rpartition("==")[2]
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".moto-", dir=cache))
        try:
            for command in installers(MOTO, work):
                if subprocess.run(command, capture_output=True, timeout=250).returncode == 0:
                    break
            else:
                pytest.skip(f"{MOTO} cannot be installed here")
            if not target.is_dir():
                work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return target


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """Run an S3 with one bucket; yields its address."""
    port = free_port()
    program = (
        f"import sys; sys.path.insert(0, {str(_moto())!r}); from moto.server import main; main(sys.argv[1:])"
    )
    url = f"http://127.0.0.1:{port}"
    with _running(
        [sys.executable, "-I", "-c", program, "-H", "127.0.0.1", "-p", str(port)], f"{url}/moto-api/"
    ):
        request("PUT", f"{url}/{bucket}", b"")
        yield url


class Registry:
    """A registry that requires a password."""

    def __init__(self, host: str, root: Path) -> None:
        self.host, self._root = host, root

    @property
    def login(self) -> str:
        """A Docker config.json with the password."""
        return json.dumps({"auths": {self.host: {"username": USER, "password": PASSWORD}}})

    def push(self, repository: str, tag: str, layers: list[tuple[str, bytes, Mapping[str, str]]]) -> str:
        """Push an artifact of layers with a media type, content and annotations; return its digest."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": "application/vnd.cncf.model.manifest.v1+json",
            "config": self._blob(repository, "application/vnd.oci.empty.v1+json", b"{}", {}),
            "layers": [self._blob(repository, *layer) for layer in layers],
        }
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        answer = request("PUT", url, json.dumps(manifest).encode(), self._headers(MANIFEST))
        return str(answer["Docker-Content-Digest"])

    def damage(self, content: bytes) -> None:
        """Flip a byte of a stored layer."""
        digest = hashlib.sha256(content).hexdigest()
        [blob] = self._root.rglob(f"blobs/sha256/{digest[:2]}/{digest}/data")
        blob.write_bytes(bytes([content[0] ^ 1]) + content[1:])

    def _blob(self, repository: str, kind: str, data: bytes, notes: Mapping[str, str]) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        begun = request("POST", f"http://{self.host}/v2/{repository}/blobs/uploads/", b"", self._headers())
        url = f"{begun['Location']}&digest={digest}"
        request("PUT", url, data, self._headers("application/octet-stream"))
        return {"mediaType": kind, "digest": digest, "size": len(data), "annotations": dict(notes)}

    def _headers(self, kind: str = "") -> dict[str, str]:
        basic = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        return {"Authorization": f"Basic {basic}", **({"Content-Type": kind} if kind else {})}


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    """Run a registry that keeps its data in `folder`."""
    program = shutil.which("docker-registry") or shutil.which("registry")
    if program is None:
        try:
            program = str(unpacked("docker-registry") / "usr/bin/docker-registry")
        except PackageMissing as missing:
            pytest.skip(f"there is no docker-registry on the PATH: {missing}")
    host, passwords = f"127.0.0.1:{free_port()}", folder / "htpasswd"
    passwords.write_text(f"{USER}:{_HASH}\n")
    settings = folder / "registry.json"
    settings.write_text(
        json.dumps(
            {
                "version": 0.1,
                "log": {"level": "error", "accesslog": {"disabled": True}},
                "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
                "http": {"addr": host},
                "auth": {"htpasswd": {"realm": "models", "path": str(passwords)}},
            }
        )
    )
    with _running([program, "serve", str(settings)], f"http://{host}/"):
        yield Registry(host, folder / "data")


@contextmanager
def _running(command: list[str], url: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            assert process.poll() is None, f"{command[0]} ended"
            try:
                request("GET", url)
            except OSError:
                return False
            return True

        wait_until(answers)
        yield
    finally:
        process.terminate()
        process.wait()


def request(
    method: str, url: str, data: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Mapping[str, str]:
    """Send one request and return the headers of the answer. Raises OSError."""
    asked = urllib.request.Request(url, data=data, method=method, headers=dict(headers or {}))
    with urllib.request.urlopen(asked, timeout=30) as answer:
        answer.read()
        return dict(answer.headers.items())
