"""A real Kubernetes control plane without nodes: etcd, kube-apiserver and kube-controller-manager.

Needs no root: everything listens on free ports of 127.0.0.1 and lives in one temporary folder. Pods are
admitted and counted but never run; `node` adds what runs them. Started by the fixture `control_plane`.
"""

import json
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path

from testcluster import kubeconfig
from testcluster.api import ApiClient, Dial
from testcluster.audit import POLICY, Right, used_by
from testcluster.cluster import Cluster
from testcluster.component import Component
from testcluster.errors import NotReady
from testcluster.free_ports import free_ports
from testcluster.kubectl import Command, Kubectl
from testcluster.pki import Authority, Certificate, Identity

SERVICE_RANGE = "10.96.0.0/16"
READY_SECONDS = 300.0
"""A busy machine with a cold disk takes minutes; a program that ends is noticed at once."""
START_ATTEMPTS = 3


@dataclass(frozen=True)
class Ports:
    """Where the components listen."""

    api: int
    etcd_client: int
    etcd_peer: int


@dataclass(frozen=True)
class Place:
    """Where a control plane runs: the machine itself, or the network of a node."""

    address: str = "127.0.0.1"
    services: str = SERVICE_RANGE
    """Where Services have their addresses, of the family of `address`; a second range after a comma."""
    prefix: tuple[str, ...] = ()
    """Put before each command, to run it in another network namespace."""
    dial: Dial = socket.create_connection
    node: str = ""
    """Name of the one node there will be; empty for none."""

    @property
    def first_service(self) -> str:
        """The address of the Service "kubernetes"."""
        return str(ip_network(self.services.partition(",")[0])[1])


class ControlPlane(Cluster):
    """The control plane; `start` returns when it takes requests."""

    def __init__(
        self,
        folder: Path,
        binaries: Path,
        *,
        ports: Ports | None = None,
        place: Place | None = None,
        features: Sequence[str] = (),
    ) -> None:
        self.folder, self.features = folder, features
        self.place = place or Place()
        self.ports = ports or Ports(*free_ports(3))
        self.binaries = binaries
        """Folder of kubectl, helm and the programs of Kubernetes."""
        (folder / "log").mkdir(parents=True, exist_ok=True)
        (folder / "audit-policy.json").write_text(json.dumps(POLICY))
        self.authority = Authority(folder / "pki")
        self._token_keys = self.authority.signing_pair("service-account")
        self.admin = self.authority.issue(Identity("admin", "/O=system:masters/CN=admin", ("DNS:admin",)))
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        addresses = sorted({"127.0.0.1", self.place.first_service, self.place.address})
        self._serving = self.authority.issue(
            Identity(
                "apiserver",
                "/CN=kube-apiserver",
                (*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)),
            )
        )
        # Of an authority of its own: whose certificates it signs may speak for anybody.
        self._front_proxy_authority = Authority(folder / "front-proxy")
        self._front_proxy = self._front_proxy_authority.issue(
            Identity("front-proxy-client", "/CN=front-proxy-client", ("DNS:front-proxy-client",))
        )
        # The API server verifies a client's certificate at every request, which takes as much processor time
        # as half a small read; a token it looks up.
        self.admin_token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f"{self.admin_token},admin,admin,system:masters\n")
        file = self.write_kubeconfig("admin", self.admin_token)
        super().__init__(
            file,
            Kubectl(binaries / "kubectl", file, self.place.prefix),
            ApiClient(self.server, self.authority.root.certificate, self.admin_token, self.place.dial),
        )
        self.helm = Command(binaries / "helm", file, self.place.prefix)
        self.etcd = self.component("etcd", self._etcd_arguments())
        self.api_server = self.component("kube-apiserver", self._api_server_arguments())
        self.controller_manager = self.component(
            "kube-controller-manager", self._controller_manager_arguments()
        )

    @property
    def server(self) -> str:
        address = self.place.address
        return f"https://{f'[{address}]' if ':' in address else address}:{self.ports.api}"

    def component(self, name: str, arguments: Sequence[str], program: str | Path | None = None) -> Component:
        """Return another component in this place, not started; `program` defaults to the binary `name`."""
        argv = [*self.place.prefix, str(program or self.binaries / name), *arguments]
        return Component(name, argv, self.folder / "log" / f"{name}.log")

    def write_kubeconfig(self, name: str, client: Certificate | str) -> Path:
        """Write the kubeconfig of a client: a certificate of the cluster's authority, or a token."""
        credentials = kubeconfig.access(self.server, self.authority.root.certificate, client)
        return kubeconfig.write(self.folder / f"{name}.kubeconfig", credentials)

    def start(self) -> None:
        """Start all components. Raises NotReady with the end of the failing component's log."""
        try:
            # Not left to the API server: it would hide why etcd died behind its own patience.
            self.start_etcd()
            self.start_api_server()
            self.controller_manager.start()
            self.controller_manager.wait_until(
                lambda: self.api.answers("/api/v1/namespaces/default/serviceaccounts/default"),
                timeout=READY_SECONDS,
                what="serving the default namespace",
            )
        except BaseException:
            self.stop()
            raise

    def start_etcd(self) -> None:
        """Start etcd, with the data of an earlier start, and wait for it."""
        self.etcd.start()
        self.etcd.wait_until(self._etcd_listens, timeout=READY_SECONDS, what="listening")

    def start_api_server(self) -> None:
        """Start the API server, with the port and data of an earlier start, and wait for it."""
        self.api_server.start()
        self.api_server.wait_until(self.api.answers, timeout=READY_SECONDS, what="ready")

    def stop_api_server(self, *, grace: float = 10.0) -> None:
        """Stop the API server as a restart of its machine would: `grace` 0 is a crash."""
        self.api_server.stop(grace=grace)

    @contextmanager
    def api_server_down(self, *, grace: float = 0.0) -> Iterator[None]:
        """Stop the API server for the length of the block and wait until it is ready again.

        Controllers begin with a new state then: their watches wait up to a minute before they try a server
        again that was away for long, and the next check would find a cluster in which nothing happens.
        """
        self.stop_api_server(grace=grace)
        try:
            yield
        finally:
            self.start_api_server()
            self.controller_manager.stop(grace=0)
            self.controller_manager.start()

    def stop(self) -> None:
        """End all processes at once: data that they have not written would be deleted anyway."""
        for component in (self.controller_manager, self.api_server, self.etcd):
            component.stop(grace=0)
        self.api.close()

    def used_by(self, account: str) -> set[Right]:
        """Return the rights that a ServiceAccount (`NAMESPACE:NAME`) has requested since the start."""
        return used_by(self.folder / "audit.log", account)

    def _etcd_listens(self) -> bool:
        try:
            self.place.dial(("127.0.0.1", self.ports.etcd_client), 1.0).close()
        except OSError:
            return False
        return self.etcd.running

    def _etcd_arguments(self) -> list[str]:
        client = f"http://127.0.0.1:{self.ports.etcd_client}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            # Tests lose nothing by a power cut; without it every write waits for the disk.
            "--unsafe-no-fsync",
        ]

    def _api_server_arguments(self) -> list[str]:
        private, public = self._token_keys
        root = self.authority.root.certificate
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd_client}",
            f"--bind-address={self.place.address}",
            f"--advertise-address={self.place.address}",
            f"--secure-port={self.ports.api}",
            f"--service-cluster-ip-range={self.place.services}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            f"--client-ca-file={root}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--service-account-key-file={public}",
            f"--service-account-signing-key-file={private}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            # The aggregation layer, as every installer sets it up.
            f"--requestheader-client-ca-file={self._front_proxy_authority.root.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self._front_proxy.certificate}",
            f"--proxy-client-key-file={self._front_proxy.key}",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--audit-policy-file={self.folder / 'audit-policy.json'}",
            f"--audit-log-path={self.folder / 'audit.log'}",
        ]
        if self.features:
            arguments.append(f"--feature-gates={','.join(f'{name}=true' for name in self.features)}")
        if not self.place.node:
            # The address of the Service "kubernetes" may not be a loopback one, and nobody would reach it.
            return [*arguments, "--endpoint-reconciler-type=none"]
        return [
            *arguments,
            f"--kubelet-client-certificate={self.admin.certificate}",
            f"--kubelet-client-key={self.admin.key}",
            # By name the API server would ask DNS for the node on logs and exec.
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_manager_arguments(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self._token_keys[0]}",
            f"--root-ca-file={self.authority.root.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            # Fifteen seconds otherwise, which tests would wait for.
            "--horizontal-pod-autoscaler-sync-period=1s",
            # Fifty seconds otherwise. A kubelet on a busy machine may be late; here there is none.
            *([] if self.place.node else ["--node-monitor-grace-period=12s"]),
        ]


@contextmanager
def running_control_plane(
    binaries: Path, place: Place | None = None, features: Sequence[str] = ()
) -> Iterator[ControlPlane]:
    """Run a control plane in a temporary folder for the length of the block.

    `features` are the feature gates of the API server that are open beside the usual ones.
    A port that was free a moment ago may be taken by a concurrent run; then the next ports are tried.
    `MAMBASERVE_KEEP_CLUSTER=1` keeps the folder with the logs.
    """
    with temporary_folder() as folder:
        for attempt in range(1, START_ATTEMPTS + 1):
            plane = ControlPlane(folder / str(attempt), binaries, place=place, features=features)
            try:
                plane.start()
                break
            except NotReady as error:
                if "address already in use" not in str(error) or attempt == START_ATTEMPTS:
                    raise
        try:
            yield plane
        finally:
            plane.stop()


@contextmanager
def temporary_folder(prefix: str = "mambaserve-cluster-") -> Iterator[Path]:
    """Yield a folder that is removed at the end, unless MAMBASERVE_KEEP_CLUSTER is set."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        if not os.environ.get("MAMBASERVE_KEEP_CLUSTER"):
            shutil.rmtree(folder, ignore_errors=True)
