"""Two pools on a whole node: streams go on while engines of either pool die and while both are replaced."""

from typing import Any

import pytest

from disruptions import Course
from mamba_api import names
from product import QUICK, Deployed, chart
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TOKENS_HANDED_OVER = "100"
"""Fewest tokens of a prompt that goes to a prefill engine: questions about a document have some hundred."""
REQUESTS = 2000
ENDED_SECONDS = 300.0


def pods(deployed: Deployed, role: str) -> dict[str, dict[str, Any]]:
    """Return the pods of a pool by name."""
    selector = f"{names.LABEL_INSTANCE}={deployed.name},{names.LABEL_ROLE}={role}"
    found = deployed.node.list("pods", deployed.namespace, selector)
    return {pod["metadata"]["name"]: pod for pod in found}


def kill(deployed: Deployed, role: str) -> None:
    """End one pod of a pool without a drain, and wait for another in its place."""
    wanted = {pool["name"]: pool["desiredReplicas"] for pool in deployed.status()["pools"]}
    name = next(iter(pods(deployed, role)))
    deployed.node.kubectl("delete", "pod", name, "-n", deployed.namespace, "--grace-period=0", "--force")
    deployed.node.wait_for(
        lambda: name not in pods(deployed, role) and ready(deployed) == wanted,
        f"another {role} pod", timeout=ENDED_SECONDS,
    )  # fmt: skip


def ready(deployed: Deployed) -> dict[str, int]:
    """Return the number of ready engines by pool."""
    return {pool["name"]: pool.get("readyReplicas", 0) for pool in deployed.status().get("pools", [])}


def handed_over(deployed: Deployed) -> float:
    """Return how many requests the gateway has handed over."""
    code = (
        "import urllib.request; "
        "print(urllib.request.urlopen('http://localhost:8000/metrics', timeout=10).read().decode())"
    )
    selector = f"{names.LABEL_INSTANCE}={deployed.name},{names.LABEL_COMPONENT}=gateway"
    (pod,) = deployed.node.list("pods", deployed.namespace, selector)
    where = [pod["metadata"]["name"], "-n", deployed.namespace, "-c", names.GATEWAY_CONTAINER]
    text = deployed.node.kubectl("exec", *where, "--", "python", "-c", code)
    lines = [line for line in text.splitlines() if line.startswith("mambaserve_gateway_hand_overs_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="computed"' in line)


def test_streams_survive_deaths_and_rolls_of_both_pools(node: Node) -> None:
    with chart(node):
        deployed = Deployed(node, node.create_namespace("pools"))
        container = {
            "name": "gateway",
            "env": [{"name": "MAMBASERVE_HAND_OVER_TOKENS", "value": TOKENS_HANDED_OVER}],
        }
        deployed.apply(
            rollout=QUICK,
            resources={"gpus": 0, "cpu": "100m", "memory": "1Gi"},
            gateway={"podTemplate": {"spec": {"containers": [container]}}},
            disaggregation={"prefill": {"replicas": 1}, "decode": {"replicas": 2}},
        )
        deployed.wait_ready()
        course = Course(deployed)
        with course.traffic(streams=8, rate=15, salted=True):
            course.wait_answered(100)
            with course.phase("the prefill pod dies"):
                kill(deployed, "prefill")
            with course.phase("a decode pod dies"):
                kill(deployed, "decode")
            with course.phase("both pools are replaced"):
                deployed.patch({"env": [{"name": "REPLACED", "value": "1"}]})
                deployed.wait_settled()
            before = handed_over(deployed)
            with course.phase("the decode pool alone grows"):
                deployed.patch({"disaggregation": {"decode": {"replicas": 3}}})
                wanted = {"prefill": 1, "decode": 3}
                node.wait_for(
                    lambda: ready(deployed) == wanted, "a third decode engine", timeout=ENDED_SECONDS
                )
            course.wait_answered_in_all(REQUESTS)
            assert handed_over(deployed) > before

        # An engine that dies takes the streams that it was writing with it, and no others.
        inside = [one for one in course.requests if one.error is not None and one.first is not None]
        assert [one.error for one in course.requests if one.error is not None and one not in inside] == []
        assert all("decode pod dies" in course.during(one) for one in inside), course.failures
        assert len(course.requests) >= REQUESTS
        node.delete_namespace(deployed.namespace)
