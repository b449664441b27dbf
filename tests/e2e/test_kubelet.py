"""What a kubelet does to pods, and its absence, as a user is told of them.

In a deployment of their own, since one whose pods are refused makes hundreds of them, which stay as records.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from product import Deployed, chart, questions
from testcluster.errors import ClusterError
from testcluster.node import Node

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def served(node: Node) -> Iterator[Deployed]:
    """The quick start, Ready, and a pod with the official client."""
    with chart(node):
        deployed = Deployed(node, node.create_namespace("kubelet"))
        deployed.apply()
        deployed.start_client()
        deployed.wait_ready()
        yield deployed
        node.delete_namespace(deployed.namespace)


def becomes(served: Deployed, kind: str, reason: str) -> dict[str, Any]:
    """The condition once it has the reason."""

    def found() -> dict[str, Any] | None:
        return now if (now := served.condition(kind)).get("reason") == reason else None

    try:
        now = served.node.wait_for(found, f"{kind} to be {reason}", timeout=120)
    except ClusterError as error:
        raise AssertionError(f"{error}\n{served.how_it_stands()}") from error
    assert now is not None
    return now


def wanted_engines(served: Deployed) -> int:
    """Pods that ReplicaSets of engines are to have. The controller of Deployments may take a minute to give
    up a ReplicaSet whose pods fail as quickly as they are made: each changes the object that it writes to."""
    selector = f"app.kubernetes.io/instance={served.name},app.kubernetes.io/component=engine"
    found = served.node.list("replicasets", served.namespace, selector)
    return sum(int(one["spec"]["replicas"]) for one in found)


def test_pods_that_the_kubelet_refuses_are_told_in_its_words_and_the_old_engine_serves(
    served: Deployed,
) -> None:
    (before,) = served.engine_pods()
    # Past the scheduler, to a node that is no such one.
    served.patch({"podTemplate": {"spec": {"nodeName": "node-1", "nodeSelector": {"disk": "ssd"}}}})

    said = becomes(served, "Degraded", "PodsFailed")["message"]

    assert "NodeAffinity" in said
    assert served.condition("Ready")["status"] == "True"
    served.patch({"podTemplate": None})
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
