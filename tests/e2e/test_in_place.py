"""A node with room for one engine: a roll-out replaces it in place, and no request fails."""

import json
from collections.abc import Iterator

import pytest

from disruptions import Course
from product import Deployed, chart
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]
SLOT = "example.com/slot"
"""An extended resource, as a GPU is one."""


@pytest.fixture
def one_slot(node: Node) -> Iterator[Node]:
    """Give the node one slot of the resource."""
    [name] = [one["metadata"]["name"] for one in node.list("nodes", None)]
    path = f"/status/capacity/{SLOT.replace('/', '~1')}"

    def patch(operation: dict[str, str]) -> None:
        node.kubectl(
            "patch", "node", name, "--subresource=status", "--type=json", "-p", json.dumps([operation])
        )

    patch({"op": "add", "path": path, "value": "1"})
    with chart(node):
        yield node
    patch({"op": "remove", "path": path})


def test_the_only_place_is_given_to_the_next_revision_while_requests_wait(
    one_slot: Node, namespace: str
) -> None:
    deployed = Deployed(one_slot, namespace)
    deployed.apply(
        podTemplate={"spec": {"containers": [{"name": "engine", "resources": {"limits": {SLOT: "1"}}}]}},
        rollout={"inPlaceAfter": "3s", "drainTimeout": "16s"},
    )
    deployed.start_client()
    deployed.wait_ready()
    course = Course(deployed)
    said: set[str] = set()

    def replaced() -> bool:
        said.add(deployed.condition("Progressing").get("message", ""))
        found = deployed.condition("UpToDate")
        generation = (one_slot.get("mdep", deployed.name, namespace) or {})["metadata"]["generation"]
        return found["status"] == "True" and found["observedGeneration"] == generation

    with course.traffic(streams=3, rate=4):
        with course.phase("the engine is replaced"):
            deployed.patch({"engine": {"env": [{"name": "REPLACED", "value": "1"}]}})
            one_slot.wait_for(replaced, "the new engine", timeout=180)
        course.wait_answered_in_all(40)

    assert course.failures == []
    assert any("requests wait at the gateway" in one for one in said)
    [pod] = deployed.engine_pods()
    assert {"name": "REPLACED", "value": "1"} in pod["spec"]["containers"][0]["env"]
    engine = one_slot.get("deployment", f"{deployed.name}-engine", namespace)
    assert engine is not None
    assert engine["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
