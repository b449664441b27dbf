"""Two real nodes: how pods are spread, drains where another node has room, and a node out of reach."""

from collections.abc import Iterator

import pytest

from disruptions import Course, pods, settle
from mamba_api import names
from product import QUICK, SYSTEM, Deployed, chart
from testcluster.node import Node
from testcluster.worker import Worker

pytestmark = [pytest.mark.e2e, pytest.mark.long]

OURS = (f"--pod-selector={names.LABEL_NAME}=mambaserve", "--delete-emptydir-data", "--timeout=180s")
FIRST = {"podTemplate": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "node-1"}}}}
CUT = "the engine sent nothing for too long"
STREAMS = 4


@pytest.fixture(scope="module")
def second(node: Node) -> Iterator[Worker]:
    """Yield a second worker node."""
    with node.joined() as worker:
        yield worker


@pytest.fixture(scope="module")
def served(node: Node, second: Worker) -> Iterator[Deployed]:
    """Yield the quick start with two engines and two gateways."""
    with chart(node):
        deployed = Deployed(node, node.create_namespace("two-nodes"))
        deployed.apply(replicas=2, gateway={"replicas": 2}, rollout=QUICK)
        deployed.wait_ready()
        yield deployed
        node.delete_namespace(deployed.namespace)


def nodes_of(served: Deployed, component: str) -> list[str]:
    """Return the nodes of a component's pods, in order."""
    return sorted(one["spec"]["nodeName"] for one in pods(served, component))


def drain(served: Deployed, node: str, *options: str) -> None:
    served.node.kubectl("drain", node, *(options or OURS), timeout=200)


@pytest.mark.timeout(600)  # on a busy machine each start takes its time
def test_pods_are_spread_and_a_drained_node_s_requests_go_to_the_other(
    served: Deployed, second: Worker
) -> None:
    node, course = served.node, Course(served)
    both = [node.worker.name, second.name]
    operators = node.list("pods", SYSTEM, f"{names.LABEL_COMPONENT}=operator")
    assert sorted(one["spec"]["nodeName"] for one in operators) == both
    assert nodes_of(served, "engine") == nodes_of(served, "gateway") == both

    with course.traffic(streams=STREAMS, rate=8):
        course.wait_answered(10)
        with course.phase("a node is drained, of an engine, a gateway and an operator"):
            drain(served, second.name)
            settle(served, "engine", 2)
            settle(served, "gateway", 2)
        course.wait_answered(10)
        node.kubectl("uncordon", second.name)

    assert nodes_of(served, "engine") == nodes_of(served, "gateway") == [node.worker.name] * 2
    assert course.failures == []


@pytest.mark.timeout(600)
def test_the_only_engine_serves_on_until_its_successor_on_the_other_node_does(
    served: Deployed, second: Worker
) -> None:
    node, course = served.node, Course(served)
    served.patch({"replicas": 1, "gateway": {"replicas": 1}})
    settle(served, "engine", 1)
    settle(served, "gateway", 1)
    assert nodes_of(served, "engine") == [node.worker.name]
    of_engines = f"--pod-selector={names.LABEL_COMPONENT}=engine"

    with course.traffic(streams=STREAMS, rate=8):
        course.wait_answered(10)
        with course.phase("the node of the only engine is drained"):
            drain(served, node.worker.name, of_engines, "--delete-emptydir-data", "--timeout=180s")
            settle(served, "engine", 1)
        course.wait_answered(10)
        node.kubectl("uncordon", node.worker.name)

    assert nodes_of(served, "engine") == [second.name]
    assert course.failures == []


@pytest.mark.timeout(600)
def test_of_a_node_out_of_reach_nothing_but_streams_under_way_is_lost(
    served: Deployed, second: Worker
) -> None:
    node, course = served.node, Course(served)
    served.patch({"replicas": 2, "gateway": {"replicas": 1, **FIRST}})
    served.wait_settled()
    settle(served, "gateway", 1)
    assert nodes_of(served, "engine") == [node.worker.name, second.name]
    node.kubectl("cordon", second.name)

    with course.traffic(streams=STREAMS, rate=8):  # on the node that stays
        node.kubectl("uncordon", second.name)
        course.wait_answered(10)
        with course.phase("a node is out of reach"), node.cut_off(second):
            course.wait_answered(20)
            node.wait_for(
                lambda: served.condition("Degraded").get("reason") == "NodeLost", "NodeLost", timeout=120
            )
            assert served.condition("Available")["status"] == "True"
            course.wait_answered(10)
        served.wait_settled()
        course.wait_answered(10)

    assert len(course.failures) <= STREAMS
    assert all(CUT in one for one in course.failures), course.failures
    assert nodes_of(served, "engine") == [node.worker.name, second.name]
