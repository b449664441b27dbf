"""Effects of kubelets, and of their absence, on pods, as a user sees them in the status.

In a deployment of their own, since one whose pods are refused makes hundreds of them, which stay as records.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from disruptions import Course, settle
from mamba_api import names
from product import QUICK, Deployed, chart, questions
from testcluster.errors import ClusterError, CommandFailed
from testcluster.kubelet import NODE
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DISK = {"containers": [{"name": "engine", "resources": {"limits": {"ephemeral-storage": "64Mi"}}}]}
FILL = "open('/tmp/large', 'wb').write(bytes(96 << 20))"
CUT = "the engine closed the connection before its answer was complete"
STREAMS = 4


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Deployed]:
    """Yield the quick start once it is Ready, with a pod of the official client."""
    with chart(node):
        deployed = Deployed(node, node.create_namespace("kubelet"))
        deployed.apply(podTemplate={"spec": DISK}, rollout=QUICK)
        deployed.start_client()
        deployed.wait_ready()
        yield deployed
        node.delete_namespace(deployed.namespace)


def becomes(served: Deployed, kind: str, reason: str) -> dict[str, Any]:
    """Wait until the condition has the reason and return it."""

    def found() -> dict[str, Any] | None:
        return now if (now := served.condition(kind)).get("reason") == reason else None

    try:
        now = served.node.wait_for(found, f"{kind} to be {reason}", timeout=120)
    except ClusterError as error:
        raise AssertionError(f"{error}\n{served.how_it_stands()}") from error
    assert now is not None
    return now


def wanted_engines(served: Deployed) -> int:
    """Return the number of pods that ReplicaSets of engines shall have.

    The controller of Deployments may take a minute to give up a ReplicaSet whose pods fail as quickly as they
    are created: each changes the object that it writes to.
    """
    selector = f"app.kubernetes.io/instance={served.name},app.kubernetes.io/component=engine"
    found = served.node.list("replicasets", served.namespace, selector)
    return sum(int(one["spec"]["replicas"]) for one in found)


@pytest.mark.timeout(600)  # on a busy machine each start takes its time
def test_a_drain_takes_one_of_two_and_says_why_it_waits_where_no_node_has_room(served: Deployed) -> None:
    node, course = served.node, Course(served)

    def have(count: int) -> None:
        served.patch({"replicas": count, "gateway": {"replicas": count}})
        settle(served, "engine", count)
        settle(served, "gateway", count)

    have(2)
    with course.traffic(streams=STREAMS, rate=8):
        course.wait_answered(10)
        with course.phase("the only node is drained, of operators too"):
            # It goes on asking for as long as it is let; these are its words on the terminal meanwhile.
            of_ours = [f"--pod-selector={names.LABEL_NAME}=mambaserve", "--delete-emptydir-data"]
            with pytest.raises(CommandFailed, match="it would violate the pod's disruption budget"):
                node.kubectl("drain", NODE, *of_ours, "--timeout=20s", timeout=60)
            course.wait_answered(10)
        with course.phase("it takes pods again"):
            node.kubectl("uncordon", NODE)
            settle(served, "engine", 2)
            settle(served, "gateway", 2)
        course.wait_answered(10)
    have(1)

    assert course.failures == []


@pytest.mark.timeout(600)
def test_an_evicted_engine_is_told_and_costs_the_streams_under_way_and_no_other_request(
    served: Deployed,
) -> None:
    node, course = served.node, Course(served)
    [before] = served.engine_pods()
    name = before["metadata"]["name"]

    def told() -> str | None:
        said = str(served.condition("Progressing").get("message", ""))
        return said if name in said else None

    with course.traffic(streams=STREAMS, rate=8):
        course.wait_answered(10)
        with course.phase("the kubelet evicts the only engine"):
            served.in_engine(FILL)
            said = node.wait_for(told, "the eviction to be told", timeout=120)
            served.wait_settled()
        course.wait_answered(10)

    assert said is not None
    assert "Evicted: Pod ephemeral local storage usage exceeds the total limit" in said
    record = node.get("pods", name, served.namespace)
    assert record is not None
    assert record["status"]["phase"] == "Failed"
    assert (served.status()["replicas"], served.status()["readyReplicas"]) == (1, 1)
    assert served.condition("Degraded")["reason"] == "AsExpected"
    assert len(course.failures) <= STREAMS
    assert all(CUT in one for one in course.failures), course.failures
    node.kubectl("delete", "pod", name, "-n", served.namespace)


def test_pods_that_the_kubelet_refuses_are_told_in_its_words_and_the_old_engine_serves(
    served: Deployed,
) -> None:
    (before,) = served.engine_pods()
    # Past the scheduler, to a node that is no such one.
    served.patch({"podTemplate": {"spec": {"nodeName": "node-1", "nodeSelector": {"disk": "ssd"}}}})

    said = becomes(served, "Degraded", "PodsFailed")["message"]

    assert "NodeAffinity" in said
    assert served.condition("Ready")["status"] == "True"
    served.patch({"podTemplate": {"spec": {"nodeName": None, "nodeSelector": None}}})
    served.wait_settled()
    becomes(served, "Degraded", "AsExpected")
    left = [before["metadata"]["uid"]]
    served.node.wait_for(
        lambda: (
            wanted_engines(served) == 1 and [one["metadata"]["uid"] for one in served.engine_pods()] == left
        ),
        "no more of them to be made",
        timeout=120,
    )


def test_a_kubelet_that_is_away_is_told_and_serving_goes_on_when_it_is_back(served: Deployed) -> None:
    question = questions()[1]
    (before,) = served.engine_pods()
    with served.node.kubelet_down():
        said = becomes(served, "Degraded", "NodeLost")["message"]

        assert "node-1 is not ready" in said
        assert becomes(served, "Ready", "NodeLost")["status"] == "False"
    served.wait_ready()
    assert served.ask(question)["streamed"] == question.answer
    (after,) = served.engine_pods()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
