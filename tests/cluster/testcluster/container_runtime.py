"""containerd for one test node: its configuration, its images and its runtime.

All its state lies in the node's folder, apart from any containerd the machine itself may run.
"""

import functools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testcluster import runc
from testcluster.errors import CommandFailed, ToolMissing
from testcluster.host_view import Mount
from testcluster.network import BRIDGE, Subnet, run
from testcluster.oci_archive import File, Image, archive

PAUSE_IMAGE = "mambaserve.test/pause:1"
PLUGIN_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
"""Debian package per program that a node and its images need from the machine."""


def missing_packages() -> list[str]:
    """Return the Debian packages that must be installed before a node can be created."""
    missing = {package for program, package in PACKAGES.items() if not shutil.which(program)}
    if not any(Path(folder, "bridge").exists() for folder in PLUGIN_FOLDERS):
        missing.add("containernetworking-plugins")
    return sorted(missing)


def plugin_folder() -> Path:
    """Return where the network plugins are. Raises ToolMissing."""
    for folder in PLUGIN_FOLDERS:
        if Path(folder, "bridge").exists():
            return Path(folder)
    raise ToolMissing("no network plugins: apt-get install containernetworking-plugins")


@dataclass(frozen=True)
class Layout:
    """The files of containerd in a node's folder."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def config(self) -> Path:
        return self.folder / "containerd.toml"

    @property
    def runtime_spec(self) -> Path:
        return self.folder / "runtime-spec.json"

    @property
    def runtime(self) -> Path:
        return self.folder / "runc"

    @property
    def network(self) -> Path:
        return self.folder / "cni"


@functools.cache
def snapshotter(folder: Path) -> str:
    """Return how containerd shall keep file systems of containers below `folder`.

    overlayfs shares the files of an image. Where it does not work, say because / is one itself, each
    container gets a copy of them, which takes seconds of a processor for the image of the control plane.
    """
    trial = folder / "overlay-trial"
    parts = {name: trial / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**parts)
    try:
        run("mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"]))
        run("umount", str(parts["merged"]))
        return "overlayfs"
    except CommandFailed:
        return "native"
    finally:
        shutil.rmtree(trial)


def config_text(layout: Layout, plugins: Path, snapshots: str) -> str:
    """Return containerd's configuration file; `snapshots` is the snapshotter."""

    def quoted(value: object) -> str:
        return json.dumps(str(value))

    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = {quoted(layout.folder / "containerd")}
state = {quoted(layout.folder / "run")}

[grpc]
address = {quoted(layout.socket)}

[{cri}]
sandbox_image = {quoted(PAUSE_IMAGE)}
# A negative score is not permitted in a container, and every sandbox would fail by it.
restrict_oom_score_adj = true
# Below `state`, so that whoever cleans up finds them.
netns_mounts_under_state_dir = true

[{cri}.cni]
bin_dir = {quoted(plugins)}
conf_dir = {quoted(layout.network)}

[{cri}.containerd]
snapshotter = {quoted(snapshots)}
default_runtime_name = "runc"

[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = {quoted(layout.runtime_spec)}

[{cri}.containerd.runtimes.runc.options]
BinaryName = {quoted(layout.runtime)}
"""


def runtime_spec(default: dict[str, Any]) -> dict[str, Any]:
    """Return containerd's default container specification with the machine's limits."""
    process = {key: value for key, value in default["process"].items() if key != "rlimits"}
    return {**default, "process": process}


def runtime_program() -> str:
    """Return the text of the program that containers are started by."""
    # Isolated and without site-packages: it runs some times for each container.
    return f"#!{sys.executable} -SI\n{Path(runc.__file__).read_text()}"


def network_config(layout: Layout, subnet: Subnet) -> dict[str, Any]:
    """Return the pod network: one bridge, addresses from one range."""
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.folder / "addresses"),
        "ranges": [[{"subnet": subnet.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        # A pod may reach itself through its own Service.
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}


def write_configuration(layout: Layout, mounts: Sequence[Mount], subnet: Subnet) -> None:
    """Write all files that containerd reads at its start; `mounts` are for images of the host's view."""
    layout.network.mkdir(parents=True)
    (layout.network / "10-pods.conflist").write_text(json.dumps(network_config(layout, subnet)))
    default = json.loads(run("ctr", "oci", "spec"))
    layout.runtime_spec.write_text(json.dumps(runtime_spec(default)))
    layout.runtime.write_text(runtime_program())
    layout.runtime.chmod(0o755)
    extra = [mount.as_runtime_spec() for mount in mounts]
    layout.runtime.with_name(runc.MOUNTS).write_text(json.dumps(extra))
    layout.config.write_text(config_text(layout, plugin_folder(), snapshotter(layout.folder)))


def import_image(layout: Layout, name: str, image: Image) -> None:
    """Import `image` into the node under `name`."""
    path = layout.folder / "image.tar"
    path.write_bytes(archive(name, image))
    try:
        import_archive(layout, path)
    finally:
        path.unlink()


def import_archive(layout: Layout, path: Path) -> None:
    """Import an OCI archive into the node under the name that it carries."""
    where = ("--address", str(layout.socket), "--namespace", "k8s.io")
    run("ctr", *where, "images", "import", "--snapshotter", snapshotter(layout.folder), str(path))


def pause_image(binary: Path, machine: str) -> Image:
    """Return the image whose process holds a pod's namespaces open."""
    return Image(files={"pause": File(binary.read_bytes(), 0o755)}, entrypoint=("/pause",), machine=machine)
