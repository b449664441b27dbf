"""View of the machine from a container of the test node: its programs, its Python and our source tree.

No image is downloaded and 4 GB of packages are not copied into one: the image holds empty folders, and the
node's container runtime mounts the machine's own over them, read-only. So pods need nothing special in their
templates. `HOST_IMAGE` is the name of that image.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from testcluster.oci_archive import File, Image
from testcluster.runc import HOST_VIEW

HOST_IMAGE = "mambaserve.test/host:1"
TREE = "/opt/mambaserve"
"""Where a container finds the source tree."""
ENVIRONMENT = "/opt/venv"
"""Where a container finds the virtual environment that runs the tests."""
CACHES = "/opt/caches"
KERNELS = "mambaserve/kernels"
SOURCE_ROOTS = ("libs", "operator", "server", "cli", "kernels")
TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
OPTIONAL = ("etc/ssl", "etc/ld.so.cache", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/alternatives")
WRITABLE = {"tmp": 0o1777, "var/tmp": 0o1777}
EMPTY = ("app", "app/bin", "dev", "etc", "home", "opt", "proc", "root", "run", "sys", "usr", "var")
PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532:nonroot:/tmp:/bin/sh\n"
GROUP = b"root:x:0:\nnonroot:x:65532:\n"
LAUNCHER = f"#!{ENVIRONMENT}/bin/python\nfrom mamba_cli.main import run\n\nrun()\n".encode()


@dataclass(frozen=True)
class Host:
    """Facts about the machine on which the view depends."""

    tree: str
    """The checkout."""
    environment: str
    """The virtual environment, `sys.prefix`."""
    pythons: tuple[str, ...]
    """The installation that it is based on: `sys.base_prefix`, and where that leads if it is a link."""
    top_level: Mapping[str, str]
    """The folders of TOP_LEVEL that exist, each with its target if it is a symbolic link, else empty."""
    optional: frozenset[str]
    """Members of OPTIONAL that exist."""
    machine: str
    caches: str
    """The user's folder of caches; of it the compiled CPU kernels are seen."""


@dataclass(frozen=True)
class Mount:
    """A read-only view of a path of the machine."""

    source: str
    destination: str

    def as_runtime_spec(self) -> dict[str, object]:
        """Return the mount in the format of the OCI runtime specification."""
        options = ["rbind", "ro", "nosuid"]
        return {"type": "bind", "source": self.source, "destination": self.destination, "options": options}


def look(tree: Path) -> Host:
    """Read the facts from the machine."""
    top_level = {
        name: os.readlink(path) if (path := Path("/", name)).is_symlink() else ""
        for name in TOP_LEVEL
        if Path("/", name).exists()
    }
    return Host(
        tree=str(tree.resolve()),
        environment=str(Path(sys.prefix).resolve()),
        pythons=tuple(sorted({sys.base_prefix, str(Path(sys.base_prefix).resolve())})),
        top_level=top_level,
        optional=frozenset(name for name in OPTIONAL if Path("/", name).exists()),
        machine=os.uname().machine,
        caches=os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
    )


def mounts(host: Host) -> list[Mount]:
    """Return the mounts of a container of that image, outer paths before inner ones."""
    same = ["/usr", *(f"/{name}" for name, target in host.top_level.items() if not target)]
    same += [f"/{name}" for name in sorted(host.optional)]
    same += [path for path in host.pythons if not PurePosixPath(path).is_relative_to("/usr")]
    return [
        *(Mount(path, path) for path in same),
        Mount(host.tree, TREE),
        Mount(host.environment, ENVIRONMENT),
        # Else each engine would compile them for itself, for a minute or more.
        Mount(f"{host.caches}/{KERNELS}", f"{CACHES}/{KERNELS}"),
    ]


def image(host: Host) -> Image:
    """Return the image under the mounts; `mambaserve` and `python` are on its PATH."""
    plain = [name for name, target in host.top_level.items() if not target]
    return Image(
        directories={**dict.fromkeys((*EMPTY, *plain), 0o755), **WRITABLE},
        links={name: target for name, target in host.top_level.items() if target},
        files={
            "app/bin/mambaserve": File(LAUNCHER, 0o755),
            "etc/passwd": File(PASSWD),
            "etc/group": File(GROUP),
            "etc/nsswitch.conf": File(b"hosts: files dns\n"),
        },
        entrypoint=("/app/bin/mambaserve",),
        environment={
            "HOME": "/tmp",
            "PATH": f"/app/bin:{ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The environment's own link to the checkout names a path that exists outside only.
            "PYTHONPATH": ":".join(f"{TREE}/{root}" for root in SOURCE_ROOTS),
            "PYTHONUNBUFFERED": "1",
            "XDG_CACHE_HOME": CACHES,
            **dict([HOST_VIEW.split("=")]),
        },
        machine=host.machine,
    )


def with_environment(plain: Image, environment: Mapping[str, str]) -> Image:
    """Return the image with further environment variables."""
    return replace(plain, environment={**plain.environment, **environment})
