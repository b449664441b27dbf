"""A whole one-node Kubernetes: the control plane plus kubelet, containerd, Services and DNS. Needs root.

Everything listens inside a network namespace of its own, so that several nodes do not meet and nothing of
them is left when it goes. Started by the fixture `node`.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from testcluster import cluster_dns, container_runtime, host_view, kubelet, leftovers
from testcluster.cgroup import ControlGroup
from testcluster.component import Component
from testcluster.control_plane import ControlPlane, Place, Ports
from testcluster.errors import ToolMissing
from testcluster.kubectl import Command
from testcluster.network import ADDRESS, NetworkNamespace
from testcluster.pki import Identity

READY_SECONDS = 60.0
PORTS = Ports(api=6443, etcd_client=2379, etcd_peer=2380)
BRIDGED_RULES = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
TREE = Path(__file__).parents[3]


class Node(ControlPlane):
    """The cluster; `start` returns when the node is Ready and Services and DNS answer."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.network = NetworkNamespace(folder.name)
        self.group = ControlGroup(folder.name)
        self.host = host_view.look(TREE)
        place = Place(ADDRESS, prefix=self.network.prefix, dial=self.network.dial, node=kubelet.NODE)
        super().__init__(folder, binaries, ports=PORTS, place=place)
        self._runtime = container_runtime.Layout(folder)
        self.scheduler = self.component(
            "kube-scheduler",
            [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"],
        )
        self.containerd = self.component("containerd", ["-c", str(self._runtime.config)], "containerd")
        client = self.authority.issue(
            Identity(
                "kubelet",
                f"/O=system:nodes/CN=system:node:{kubelet.NODE}",
                (f"DNS:{kubelet.NODE}", "IP:127.0.0.1", f"IP:{ADDRESS}"),
            )
        )
        self._kubelet_identity = client
        kubelet_file = self.write_kubeconfig("kubelet", client)
        self.kubelet = self.component("kubelet", kubelet.kubelet_arguments(folder, kubelet_file))
        bridged = BRIDGED_RULES.exists()
        self.proxy = self.component(
            "kube-proxy", kubelet.proxy_arguments(self.kubeconfig, bridged_rules=bridged)
        )
        self.dns = self.component("coredns", ["-conf", str(folder / "Corefile")])

    @property
    def components(self) -> Sequence[Component]:
        """All processes, in the order they start in."""
        return (
            self.etcd,
            self.api_server,
            self.controller_manager,
            self.scheduler,
            self.containerd,
            self.kubelet,
            self.proxy,
            self.dns,
        )

    def start(self) -> None:
        """Starts everything. Raises NotReady with the end of the failing component's log."""
        self.network.create()
        self.group.create()
        super().start()
        try:
            self._start_node()
        except BaseException:
            self.stop()
            raise

    def _start_node(self) -> None:
        Path(self.host.caches, host_view.KERNELS).mkdir(parents=True, exist_ok=True)
        container_runtime.write_configuration(self._runtime, host_view.mounts(self.host))
        config = kubelet.kubelet_config(
            self.folder,
            authority=self.authority.root.certificate,
            serving=self._kubelet_identity,
            socket=self._runtime.socket,
            group=self.group.name,
        )
        (self.folder / "kubelet.yaml").write_text(yaml.safe_dump(config))
        # Pods ask the cluster's DNS alone, whatever the machine is set to.
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "Corefile").write_text(cluster_dns.corefile(self.kubeconfig))
        self.containerd.start()
        self.scheduler.start()
        self.proxy.start()
        self.dns.start()
        self.apply(cluster_dns.objects())
        self.containerd.wait_until(
            self._runtime.socket.exists, timeout=READY_SECONDS, what="listening on its socket"
        )
        pause = container_runtime.pause_image(self._binaries / "pause", self.host.machine)
        container_runtime.import_image(self._runtime, container_runtime.PAUSE_IMAGE, pause)
        self.load_image(host_view.HOST_IMAGE)
        self.kubelet.start()
        self.kubelet.wait_until(self._is_ready, timeout=READY_SECONDS, what="the node is Ready")
        self.proxy.wait_until(self._dns_answers, timeout=READY_SECONDS, what="the DNS Service can be reached")

    def load_image(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Gives the image with our programs one more name, such as the one a chart asks for.

        In it `mambaserve` and `python` run the checkout; its entry point is `mambaserve`. Pods must not
        have `imagePullPolicy: Always`, which is the default for the tag `latest`.
        """
        plain = host_view.image(self.host)
        image = host_view.with_environment(plain, environment or {})
        container_runtime.import_image(self._runtime, name, image)

    def load_archive(self, path: Path) -> None:
        """Gives the node an OCI archive, under the name that it carries. Its containers see nothing else."""
        container_runtime.import_archive(self._runtime, path)

    def run_inside(self, *argv: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of a command in the node's network, where Service addresses work.

        Names of Services do not: the command sees the machine's resolver. Raises CommandFailed.
        """
        command = Command(Path(argv[0]), self.kubeconfig, self.network.prefix)
        return command(*argv[1:], stdin=stdin, timeout=timeout)

    def service_address(self, name: str, namespace: str) -> str:
        """The address of a Service, for `run_inside` and `network.dial`."""
        found = self.kubectl.json("get", "service", name, "-n", namespace)
        return str(found["spec"]["clusterIP"])

    @contextmanager
    def kubelet_down(self) -> Iterator[None]:
        """The kubelet is killed, and away for the length of the block; containers run on. The cluster gives
        its node up after fifteen seconds, which are fifty otherwise."""
        self.kubelet.stop(grace=0)
        self._restart_controllers([*self.controller_manager.argv, "--node-monitor-grace-period=15s"])
        try:
            yield
        finally:
            self.kubelet.start()
            self._restart_controllers(self.controller_manager.argv[:-1])
            self.kubelet.wait_until(self._is_ready, timeout=READY_SECONDS, what="the node is Ready")

    def _restart_controllers(self, argv: list[str]) -> None:
        self.controller_manager.stop(grace=0)
        self.controller_manager.argv = argv
        self.controller_manager.start()

    def stop(self) -> None:
        """Ends all components at once; `leftovers.remove` removes the rest."""
        self.api.close()
        for component in reversed(self.components):
            component.stop(grace=0)

    def _is_ready(self) -> bool:
        try:
            status, found = self.api.request("GET", f"/api/v1/nodes/{kubelet.NODE}", timeout=2.0)
        except OSError:
            return False
        if status != 200:
            return False
        conditions = found.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def _dns_answers(self) -> bool:
        try:
            self.network.dial((kubelet.DNS_ADDRESS, cluster_dns.PORT), 0.5).close()
        except OSError:
            return False
        return True


def check_machine() -> None:
    """Raises ToolMissing, saying what to do, when no node can be made here."""
    if os.geteuid() != 0:
        raise ToolMissing("a node needs root: run `make e2e` as root on Linux")
    if packages := container_runtime.missing_packages():
        raise ToolMissing(
            f"programs are missing: apt-get install --no-install-recommends {' '.join(packages)}"
        )


@contextmanager
def running_node(binaries: Path) -> Iterator[Node]:
    """A node for the length of the block; what killed runs left behind is removed first.

    `MAMBASERVE_KEEP_CLUSTER=1` leaves the folder with the logs where it is.
    """
    check_machine()
    leftovers.sweep()
    folder = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
    leftovers.claim(folder)
    try:
        node = Node(folder, binaries)
        node.start()
        try:
            yield node
        finally:
            node.stop()
    finally:
        leftovers.remove(folder, keep_files=bool(os.environ.get("MAMBASERVE_KEEP_CLUSTER")))
