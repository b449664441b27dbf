"""Engines follow the traffic, from one to three and back to none, in a cluster that runs them.

Each engine of this deployment runs two requests at once, so that a handful of clients is a load.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from disruptions import ENDED, Course, pods
from product import Deployed, chart, questions
from testcluster.errors import ClusterError
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

DELAY = 3
"""Seconds of `scaleDownDelay`; the operator looks each ten. The burst is remembered for twelve times as long,
and on a machine that is quick and free it is more than one engine could have done."""
LONG = 800
"""Tokens of answers that engines are busy with at any moment that somebody looks."""
CALM = 200
"""Seconds, dozens of such windows, in which an engine that is asked now and then is not stopped."""


def engines(deployed: Deployed) -> int:
    """Return the engine pods that are not being deleted."""
    return len(deployed.engine_pods())


def until(deployed: Deployed, count: int) -> None:
    """Wait for that many engine pods. Raises ClusterError with the object's status."""
    try:
        deployed.node.wait_for(lambda: engines(deployed) == count, f"{count} engines", timeout=ENDED)
    except ClusterError as error:
        where = ["-n", deployed.namespace, "-o", "jsonpath={.status.scaling.reason}"]
        said = deployed.node.kubectl("get", "mdep", deployed.name, *where)
        raise ClusterError(f"{error}; {engines(deployed)} run: {said}") from error


def replayed(deployed: Deployed, folder: Path) -> list[dict[str, Any]]:
    """Return the output of `mambaserve scaling replay` for the object as `kubectl get` prints it."""
    saved = folder / "object.json"
    where = ["-n", deployed.namespace, "-o", "json"]
    saved.write_text(deployed.node.kubectl("get", "mdep", deployed.name, *where))
    command = [sys.executable, "-m", "mamba_cli", "scaling", "replay", str(saved), "--output", "json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.timeout(900)
def test_engines_follow_the_traffic_to_three_and_to_none_and_a_request_wakes_one(
    node: Node, namespace: str, tmp_path: Path
) -> None:
    with chart(node):
        deployed = Deployed(node, namespace)
        deployed.apply(
            engine={"maxRunningRequests": 2},
            scaling={"minReplicas": 0, "maxReplicas": 3, "scaleDownDelay": f"{DELAY}s"},
        )
        deployed.start_client()
        deployed.wait_ready()

        busy, calm = Course(deployed), Course(deployed)
        with busy.traffic(streams=16, rate=1000, tokens=LONG):
            until(deployed, 3)
            busy.wait_answered(50)
        with calm.traffic(streams=1, rate=2):
            # Fewer do, but one that is asked all the time is never stopped, however often it might have been.
            until(deployed, 1)
            [kept] = (pod["metadata"]["name"] for pod in deployed.engine_pods())
            calm.wait_answered(2 * CALM)
            assert [pod["metadata"]["name"] for pod in deployed.engine_pods()] == [kept]
        until(deployed, 0)
        node.wait_for(lambda: not pods(deployed, "engine"), "the last engine to end", timeout=ENDED)
        question = questions()[0]

        said = deployed.ask(question)

        assert (said["streamed"], said["whole"]) == (question.answer, question.answer)
        assert (busy.failures, calm.failures) == ([], [])
        decisions = replayed(deployed, tmp_path)
        assert {0, 1, 3} <= {one["decision"]["target"] for one in decisions}
        node.kubectl("delete", "mdep", deployed.name, "-n", namespace, "--timeout=60s")
