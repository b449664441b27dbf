"""Clusters of IPv6 alone and of both families, on a real API server with its controllers.

The operator's objects have addresses there, and gateways find engines by them.
"""

import json
import socket
from collections.abc import AsyncIterator, Iterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from ipv6 import has_ipv6
from kube_life import READY, Life
from mamba_api.v1alpha1.schema import CUSTOM_KINDS, all_crds_yaml
from mamba_edge.listener import bound
from mamba_gateway.endpoints.discovery import targets
from mamba_kube.access import connected, load_access
from mamba_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, ENDPOINT_SLICE, NETWORK_POLICY, SERVICE
from mamba_operator.objects.manifest import Key, Manifest
from matrix_size import LARGE
from testcluster.build import ensure
from testcluster.control_plane import SERVICE_RANGE, ControlPlane, Place, running_control_plane

pytestmark = [pytest.mark.kube, pytest.mark.slow]  # a control plane of its own
RANGE = "fd00:10:96::/112"
PLACES = {
    "IPv6 alone": Place("::1", RANGE),
    "IPv4 first": Place(services=f"{SERVICE_RANGE},{RANGE}"),
}
POD = "fd00:10:244::7"
BOTH = [{"ip": "10.244.0.7"}, {"ip": POD}]


@pytest.fixture(scope="module", params=PLACES if LARGE else ["IPv6 alone"])
def plane(request: pytest.FixtureRequest, control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """Yield a control plane of these tests; the shared one is requested so that the build exists."""
    if not has_ipv6():
        pytest.skip("the kernel has no address ::1")
    with running_control_plane(ensure(), PLACES[request.param]) as made:
        made.kubectl("apply", "--server-side", "-f", "-", stdin=all_crds_yaml())
        for kind in CUSTOM_KINDS:
            made.wait_established(kind.name)
        yield made


@pytest.fixture
async def life(plane: ControlPlane) -> AsyncIterator[Life]:
    namespace = plane.create_namespace()
    async with connected(await load_access(str(plane.kubeconfig))) as server:
        made = Life(server, Key(namespace, "nano"))
        await made.make(rollout={"minReadyTime": "0s"})
        await made.settle()
        yield made


def families(plane: ControlPlane) -> list[str]:
    """Return the cluster's families of pod addresses; Services have the first."""
    return ["IPv6"] if plane.place.address == "::1" else ["IPv4", "IPv6"]


async def child(life: Life, kind: Any, name: str) -> Manifest:
    return await life.child(kind, name) or {}


async def test_services_probes_and_gateways_use_addresses_of_the_clusters_first_family(
    plane: ControlPlane, life: Life
) -> None:
    await assert_services_have_one(plane, life)
    await assert_nothing_names_one(life)
    await assert_both_are_listened_on(life)
    await assert_gateways_find_each_engine_once(plane, life)


async def assert_services_have_one(plane: ControlPlane, life: Life) -> None:
    gateway, engine = [(await child(life, SERVICE, name))["spec"] for name in ("nano", "nano-engine")]

    services = ip_network(plane.place.services.partition(",")[0])
    assert ip_address(gateway["clusterIP"]) in services
    for spec in (gateway, engine):
        assert (spec["ipFamilies"], spec["ipFamilyPolicy"]) == (families(plane)[:1], "SingleStack")
    assert engine["clusterIP"] == "None"


async def assert_gateways_find_each_engine_once(plane: ControlPlane, life: Life) -> None:
    [pod] = await life.until(lambda: life.pods("engine"))
    place_on_a_node(plane, pod)
    addresses = BOTH[-len(families(plane)) :]
    await life.set_pod_status(
        pod, phase="Running", podIP=addresses[0]["ip"], podIPs=addresses, conditions=[READY]
    )
    selector = "kubernetes.io/service-name=nano-engine"

    async def found() -> list[str]:
        slices = await life.kube.list(ENDPOINT_SLICE, life.key.namespace, selector=selector)
        return [one.url for one in targets(slices)]

    assert await life.until(found) == [
        f"http://[{POD}]:8000" if families(plane) == ["IPv6"] else "http://10.244.0.7:8000"
    ]


async def assert_both_are_listened_on(life: Life) -> None:
    settings = json.loads((await child(life, CONFIG_MAP, "nano-engine"))["data"]["engine.json"])
    arguments = container(await child(life, DEPLOYMENT, "nano"))["args"]
    hosts = {settings["host"], arguments[arguments.index("--host") + 1]}

    assert len(hosts) == 1
    with bound(hosts.pop(), 0) as listener:
        listener.listen()
        for address in ("::1", "127.0.0.1"):
            socket.create_connection((address, listener.getsockname()[1]), timeout=5).close()


async def assert_nothing_names_one(life: Life) -> None:
    policy = (await child(life, NETWORK_POLICY, "nano-engine"))["spec"]
    peers = [peer for rule in policy["ingress"] for peer in rule["from"]]
    assert [peer for peer in peers if "ipBlock" in peer] == []

    for name in ("nano", "nano-engine"):
        pod = container(await child(life, DEPLOYMENT, name))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert "host" not in pod[probe]["httpGet"], "a kubelet asks the pod by its own address"
    status = (await life.owner())["status"]
    assert status["url"] == f"http://nano.{life.key.namespace}.svc/v1"


def place_on_a_node(plane: ControlPlane, pod: Manifest) -> None:
    """Bind a pod to a node as a scheduler does; only pods on nodes become endpoints."""
    node, meta = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}}, pod["metadata"]
    plane.apply(node)
    path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding"
    target = {"apiVersion": "v1", "kind": "Node", "name": "one"}
    bound_to = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
    assert plane.api.request("POST", path, bound_to)[0] == 201


def container(deployment: Manifest) -> Manifest:
    [only] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(only)
