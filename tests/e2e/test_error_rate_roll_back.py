"""Engines that are ready and fail requests are taken back, with the defaults; the old one serves on."""

import json
import threading
from collections.abc import Iterator

import pytest

from failing_engine import FAILING_ENGINE
from product import CLIENT, Deployed, chart, questions
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ASKING = """
import collections, itertools, json, os, sys, time, urllib.error, urllib.request
url, enough = sys.argv[1:]
codes = collections.Counter()
for number in itertools.count():
    # Conversations of their own: one that an engine knows would go where it is known.
    body = {"model": "tiny-recall", "max_tokens": 1,
            "messages": [{"role": "user", "content": f"{number} or more?"}]}
    asked = urllib.request.Request(
        url + "/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        codes[urllib.request.urlopen(asked, timeout=60).status] += 1
    except urllib.error.HTTPError as error:
        codes[error.code] += 1
    if os.path.exists(enough):
        break
    time.sleep(0.1)
print(json.dumps(codes))
"""
ENOUGH = "/tmp/enough"


@pytest.fixture
def installed(node: Node) -> Iterator[Node]:
    """Yield a node with the chart installed."""
    with chart(node):
        yield node


def ask_on(deployed: Deployed, said: list[str]) -> None:
    """Ask until there is the file."""
    url = f"http://{deployed.name}.{deployed.namespace}.svc/v1"
    where = ["exec", "-i", CLIENT, "-n", deployed.namespace, "--", "python", "-", url, ENOUGH]
    said.append(deployed.node.kubectl(*where, stdin=ASKING, timeout=260))


def test_an_engine_that_is_ready_and_fails_requests_is_taken_back(installed: Node, namespace: str) -> None:
    deployed = Deployed(installed, namespace)
    deployed.apply()
    deployed.start_client()
    deployed.wait_ready()
    installed.wait_for(
        lambda: installed.get("configmap", f"{deployed.name}-last-ready", namespace),
        "a revision that was ready",
    )
    [served] = [pod["metadata"]["name"] for pod in deployed.engine_pods()]
    said: list[str] = []
    asking = threading.Thread(target=ask_on, args=(deployed, said))
    asking.start()

    engine = {"name": "engine", "command": ["python", "-c", FAILING_ENGINE], "args": []}
    deployed.patch({"podTemplate": {"spec": {"containers": [engine]}}})
    installed.wait_for(
        lambda: deployed.status().get("rollout", {}).get("failedRevision"), "it to be taken back", timeout=120
    )
    installed.wait_for(
        lambda: [pod["metadata"]["name"] for pod in deployed.engine_pods()] == [served],
        "the old engine alone",
        timeout=60,
    )

    rollout = deployed.status()["rollout"]
    assert rollout["reason"] == "ErrorRateRose"
    assert " failed 0 of" in rollout["message"]
    assert deployed.condition("Ready")["status"] == "True"
    assert deployed.condition("Degraded")["reason"] == "RolledBack"
    question = questions()[0]
    assert deployed.ask(question)["streamed"] == question.answer
    installed.kubectl("exec", CLIENT, "-n", namespace, "--", "touch", ENOUGH)
    asking.join(60)
    codes = json.loads(said[0])
    assert set(codes) == {"200", "500"}
