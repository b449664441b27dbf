"""A whole Kubernetes of one node or more: control plane, kubelets, containerd, Services and DNS.

Needs root.

Everything listens inside network namespaces of its own, so that several clusters do not meet and nothing of
them is left when they go. Started by the fixture `node`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testcluster import cluster_dns, container_runtime, host_view, kubelet, leftovers
from testcluster.component import Component
from testcluster.control_plane import ControlPlane, Place, Ports
from testcluster.errors import ToolMissing
from testcluster.kubectl import Command
from testcluster.network import FIRST, Subnet
from testcluster.worker import READY_SECONDS, Worker

PORTS = Ports(api=6443, etcd_client=2379, etcd_peer=2380)
TREE = Path(__file__).parents[3]


class Node(ControlPlane):
    """The cluster; `start` returns when its first node is Ready and Services and DNS answer."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.host = host_view.look(TREE)
        self.worker = Worker(kubelet.NODE, folder, binaries, FIRST, self.host)
        self.network, self.group = self.worker.network, self.worker.group
        place = Place(
            FIRST.address, prefix=self.network.prefix, dial=self.network.dial, node=self.worker.name
        )
        super().__init__(folder, binaries, ports=PORTS, place=place)
        self.workers: list[Worker] = []
        """Running workers: the first, and those that have joined."""
        self._images: list[Callable[[Worker], None]] = []
        """Each gives a node one of the images."""
        self.scheduler = self.component(
            "kube-scheduler",
            [f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"],
        )
        self.dns = self.component("coredns", ["-conf", str(folder / "Corefile")])

    @property
    def components(self) -> Sequence[Component]:
        """All processes but those of nodes that joined, in the order they start in."""
        own = self.worker
        return (
            self.etcd,
            self.api_server,
            self.controller_manager,
            self.scheduler,
            own.containerd,
            own.kubelet,
            own.proxy,
            self.dns,
        )

    def start(self) -> None:
        """Start all components. Raises NotReady with the end of the failing component's log."""
        self.worker.create()
        super().start()
        try:
            (self.folder / "Corefile").write_text(cluster_dns.corefile(self.kubeconfig))
            self.scheduler.start()
            self.dns.start()
            self.apply(cluster_dns.objects())
            self.load_image(host_view.HOST_IMAGE)
            self._start(self.worker)
        except BaseException:
            self.stop()
            raise

    def _start(self, worker: Worker) -> None:
        client = worker.issue(self.authority)
        own = self.write_kubeconfig(worker.name, client)
        worker.configure(self.authority, client, own, self.kubeconfig)
        worker.proxy.start()
        worker.start_runtime()
        for load in self._images:
            load(worker)
        self.workers.append(worker)
        worker.kubelet.start()
        self._wait_ready(worker)
        worker.proxy.wait_until(
            lambda: _dns_answers(worker), timeout=READY_SECONDS, what="the DNS Service can be reached"
        )

    def _wait_ready(self, worker: Worker) -> None:
        worker.kubelet.wait_until(
            lambda: self._is_ready(worker.name), timeout=READY_SECONDS, what="the node is Ready"
        )

    @contextmanager
    def joined(self) -> Iterator[Worker]:
        """Yield one node more for the length of the block, with the images of the first one."""
        number = len(self.workers)
        folder = Path(tempfile.mkdtemp(prefix=leftovers.PREFIX))
        leftovers.claim(folder)
        worker = Worker(f"node-{number + 1}", folder, self.binaries, Subnet(number), self.host)
        try:
            worker.create()
            self.network.connect(worker.network)
            self._start(worker)
            yield worker
        finally:
            if worker in self.workers:
                self.workers.remove(worker)
            worker.stop()
            leftovers.remove(folder, keep_files=keeps_files())
            self.kubectl("delete", "node", worker.name, "--ignore-not-found")

    def load_image(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        """Give the image with our programs one more name, such as the one a chart requests, on all nodes.

        In it `mambaserve` and `python` run the checkout; its entry point is `mambaserve`. Pods must not
        have `imagePullPolicy: Always`, which is the default for the tag `latest`.
        """
        image = self.worker.host_image(environment or {})
        self._load(lambda worker: worker.import_image(name, image))

    def load_archive(self, path: Path) -> None:
        """Import an OCI archive into all nodes, under the name that it carries.

        Its containers see nothing else.
        """
        self._load(lambda worker: worker.import_archive(path))

    def _load(self, load: Callable[[Worker], None]) -> None:
        self._images.append(load)  # for those that join
        for worker in self.workers:
            load(worker)

    def run_inside(self, *argv: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Run a command in the node's network, where Service addresses work, and return its standard output.

        Names of Services do not: the command sees the machine's resolver. Raises CommandFailed.
        """
        command = Command(Path(argv[0]), self.kubeconfig, self.network.prefix)
        return command(*argv[1:], stdin=stdin, timeout=timeout)

    def service_address(self, name: str, namespace: str) -> str:
        """Return the address of a Service, for `run_inside` and `network.dial`."""
        service = self.kubectl.json("get", "service", name, "-n", namespace)
        return str(service["spec"]["clusterIP"])

    @contextmanager
    def kubelet_down(self) -> Iterator[None]:
        """Kill the kubelet and keep it away for the length of the block; containers run on."""
        self.worker.kubelet.stop(grace=0)
        try:
            with self._soon_given_up():
                yield
        finally:
            self.worker.kubelet.start()
            self._wait_ready(self.worker)

    @contextmanager
    def cut_off(self, worker: Worker) -> Iterator[None]:
        """Cut off a node that joined for the length of the block; its containers run on."""
        with self._soon_given_up(), self.network.cut_off(worker.network):
            yield
        self._wait_ready(worker)

    @contextmanager
    def _soon_given_up(self) -> Iterator[None]:
        """Let the cluster give a node up after fifteen seconds of silence instead of fifty."""
        before = self.controller_manager.argv
        self._restart_controllers([*before, "--node-monitor-grace-period=15s"])
        try:
            yield
        finally:
            self._restart_controllers(before)

    def _restart_controllers(self, argv: list[str]) -> None:
        self.controller_manager.stop(grace=0)
        self.controller_manager.argv = argv
        self.controller_manager.start()

    def stop(self) -> None:
        """End all components at once; `leftovers.remove` removes the rest."""
        self.api.close()
        for component in reversed(self.components):
            component.stop(grace=0)

    def _is_ready(self, name: str) -> bool:
        try:
            status, node = self.api.request("GET", f"/api/v1/nodes/{name}", timeout=2.0)
        except OSError:
            return False
        if status != 200:
            return False
        conditions = node.get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _dns_answers(worker: Worker) -> bool:
    try:
        worker.network.dial((kubelet.DNS_ADDRESS, cluster_dns.PORT), 0.5).close()
    except OSError:
        return False
    return True


def keeps_files() -> bool:
    """Return whether the folders with the logs are to stay."""
    return bool(os.environ.get("MAMBASERVE_KEEP_CLUSTER"))


def check_machine() -> None:
    """Raise ToolMissing with instructions if no node can be created on this machine."""
    if os.geteuid() != 0:
        raise ToolMissing("a node needs root: run `make e2e` as root on Linux")
    if packages := container_runtime.missing_packages():
        raise ToolMissing(
            f"programs are missing: apt-get install --no-install-recommends {' '.join(packages)}"
        )


@contextmanager
def running_node(binaries: Path) -> Iterator[Node]:
    """Run a node for the length of the block, after removing the remains of killed runs.

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
        leftovers.remove(folder, keep_files=keeps_files())
