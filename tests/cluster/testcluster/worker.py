"""Processes of one node of a test cluster: containerd, kubelet, kube-proxy, in their own network.

Created by `Node`, for itself and for each node that joins it. Needs root.
"""

from collections.abc import Mapping
from pathlib import Path

import yaml

from testcluster import container_runtime, host_view, kubelet
from testcluster.cgroup import ControlGroup
from testcluster.component import Component
from testcluster.host_view import Host
from testcluster.network import NetworkNamespace, Subnet
from testcluster.oci_archive import Image
from testcluster.pki import Authority, Certificate, Identity

READY_SECONDS = 300.0
BRIDGED_RULES = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


class Worker:
    """One node's own processes. The folder's name is that of its network namespace and control group."""

    def __init__(self, name: str, folder: Path, binaries: Path, subnet: Subnet, host: Host) -> None:
        self.name, self.folder, self.subnet = name, folder, subnet
        self.network = NetworkNamespace(folder.name, subnet)
        self.group = ControlGroup(folder.name)
        self._host, self._binaries = host, binaries
        self._runtime = container_runtime.Layout(folder)
        self.containerd = self._component("containerd", ["-c", str(self._runtime.config)], "containerd")
        self.kubelet = self._component("kubelet", [])
        self.proxy = self._component("kube-proxy", [])

    def issue(self, authority: Authority) -> Certificate:
        """Issue the certificate of the kubelet, as a client and as a server."""
        addresses = (f"DNS:{self.name}", "IP:127.0.0.1", f"IP:{self.subnet.address}")
        identity = Identity(self.name, f"/O=system:nodes/CN=system:node:{self.name}", addresses)
        return authority.issue(identity)

    def configure(
        self, authority: Authority, certificate: Certificate, own_kubeconfig: Path, kubeconfig: Path
    ) -> None:
        """Write the configuration files; `own_kubeconfig` is the kubelet's, the other one kube-proxy's."""
        Path(self._host.caches, host_view.KERNELS).mkdir(parents=True, exist_ok=True)
        container_runtime.write_configuration(self._runtime, host_view.mounts(self._host), self.subnet)
        config = kubelet.kubelet_config(
            self.folder,
            address=self.subnet.address,
            authority=authority.root.certificate,
            serving=certificate,
            socket=self._runtime.socket,
            group=self.group.name,
        )
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))
        # Pods ask the cluster's DNS alone, whatever the machine is set to.
        (self.folder / "resolv.conf").write_text("")
        address = self.subnet.address
        self.kubelet.argv += kubelet.kubelet_arguments(self.folder, own_kubeconfig, self.name, address)
        self.proxy.argv += kubelet.proxy_arguments(
            kubeconfig, self.name, bridged_rules=BRIDGED_RULES.exists()
        )

    def create(self) -> None:
        """Create the network and the control group. Raises CommandFailed, ClusterError."""
        self.network.create()
        self.group.create()

    def start_runtime(self) -> None:
        """Start containerd with the pause image. Raises NotReady, CommandFailed."""
        self.containerd.start()
        self.containerd.wait_until(
            self._runtime.socket.exists, timeout=READY_SECONDS, what="listening on its socket"
        )
        pause = container_runtime.pause_image(self._binaries / "pause", self._host.machine)
        self.import_image(container_runtime.PAUSE_IMAGE, pause)

    def host_image(self, environment: Mapping[str, str]) -> Image:
        """Return the image with our programs, its containers' environment extended."""
        return host_view.with_environment(host_view.image(self._host), environment)

    def import_image(self, name: str, image: Image) -> None:
        """Import `image` into this node under `name`."""
        container_runtime.import_image(self._runtime, name, image)

    def import_archive(self, path: Path) -> None:
        """Import an OCI archive into this node under the name that it carries."""
        container_runtime.import_archive(self._runtime, path)

    def stop(self) -> None:
        """End the processes at once; `leftovers.remove` removes the rest."""
        for component in (self.proxy, self.kubelet, self.containerd):
            component.stop(grace=0)

    def _component(self, name: str, arguments: list[str], program: str | None = None) -> Component:
        argv = [*self.network.prefix, str(program or self._binaries / name), *arguments]
        (self.folder / "log").mkdir(parents=True, exist_ok=True)
        return Component(name, argv, self.folder / "log" / f"{name}.log")
