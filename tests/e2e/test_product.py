"""The product as a user meets it: the chart, one YAML, the official client, and what goes wrong on the way.

One deployment serves all tests of the module, because each start loads an engine.
"""

import json
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any, Self

import pytest

from disruptions import (
    Course,
    ask_for_keys,
    evict,
    kill_leader,
    kill_operators,
    scale,
    settle,
)
from product import QUICK, RELEASE, SYSTEM, Deployed, Question, chart, chat, questions
from testcluster.errors import ClusterError, CommandFailed
from testcluster.node import Node

# With the start of the cluster, should it come first; beside the other tests of .ci/run phases take minutes.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

KILL_ENGINE = """
import os, pathlib, signal
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    words = (folder / "cmdline").read_bytes().split(b"\\0")
    if b"mamba_server.engine" in words:
        os.kill(int(folder.name), signal.SIGKILL)
        print(folder.name)
"""
ADMIN_PLAN = """
import os, pathlib, urllib.request
token = pathlib.Path("/run/mambaserve/admin/token").read_text().strip()
url = f"http://{os.environ['MAMBASERVE_ADMIN_HOST']}:8001/admin/plan"
asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
print(urllib.request.urlopen(asked, timeout=10).read().decode())
"""


@pytest.fixture(scope="module")
def installed(node: Node) -> Iterator[Node]:
    """Yield a cluster with the chart in it."""
    with chart(node):
        yield node


@pytest.fixture(scope="module")
def served(installed: Node) -> Iterator[Deployed]:
    """Yield the quick start once it is Ready, with a pod of the official client."""
    deployed = Deployed(installed, installed.create_namespace("product"))
    deployed.apply(rollout=QUICK)
    deployed.start_client()
    deployed.wait_ready()
    yield deployed
    installed.delete_namespace(deployed.namespace)


def row(node: Node, namespace: str, *options: str) -> dict[str, str]:
    """Return the single line of `kubectl get mdep`, by column."""
    text = node.kubectl("get", "mdep", "-n", namespace, *options)
    head, line = text.splitlines()
    starts = [head.index(word) for word in head.split("  ") if word.strip()]
    edges = zip(starts, [*starts[1:], None], strict=True)
    return {head[begin:end].strip(): line[begin:end].strip() for begin, end in edges}


def test_helm_test_finds_the_operator_alive_and_the_api_served(installed: Node) -> None:
    said = installed.helm("test", RELEASE, "-n", SYSTEM, "--timeout", "5m", timeout=330)

    assert "Phase:          Succeeded" in said


def test_the_example_becomes_ready_and_tells_what_was_planned_and_where_it_answers(served: Deployed) -> None:
    status = served.status()

    assert status["url"] == f"http://quick-start.{served.namespace}.svc/v1"
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["observedGeneration"] == 1
    plan = status["plan"]
    assert plan["strategy"] in {"NoBuffer", "ExtraBuffer", "ExtraBufferLazy"}
    assert plan["slots"] > 0
    assert plan["pages"] > 0
    assert plan["maxRunningRequests"] > 0
    assert sum(entry["bytes"] for entry in plan["ledger"]) > 0


def test_the_columns_show_a_user_the_state_at_a_glance(served: Deployed) -> None:
    wide = row(served.node, served.namespace, "-o", "wide")

    assert wide["NAME"] == "quick-start"
    assert (wide["READY"], wide["REASON"], wide["REPLICAS"]) == ("True", "Serving", "1/1")
    assert wide["MODEL"] == "builtin://tiny-recall"
    assert wide["STRATEGY"] == served.status()["plan"]["strategy"]
    assert wide["URL"] == served.status()["url"]
    assert int(wide["SLOTS"]) > 0


def test_the_engine_runs_what_the_status_promises(served: Deployed) -> None:
    promised, running = served.status()["plan"], json.loads(served.in_engine(ADMIN_PLAN))

    same = ("strategy", "stateDtype", "slots", "pages", "maxRunningRequests")
    assert {key: running[key] for key in same} == {key: promised[key] for key in same}


def test_the_official_client_streams_right_answers_from_the_endpoint(served: Deployed) -> None:
    first, second = questions()[:2]

    cold, warm = served.ask(first), served.ask(second)

    assert cold["models"] == ["tiny-recall"]
    assert (cold["streamed"], cold["whole"]) == (first.answer, first.answer)
    assert (warm["streamed"], warm["whole"]) == (second.answer, second.answer)
    # The second of the same two requests resumes from a checkpoint of the first.
    assert 0 < cold["cached_tokens"] < cold["prompt_tokens"]
    assert 0 < warm["cached_tokens"] < warm["prompt_tokens"]


def test_an_answer_of_many_tokens_comes_in_pieces(served: Deployed) -> None:
    question = chat("Count from 3 to 9.")

    # Tokens that come while a busy machine sends none go out as one piece: enough of them.
    said = served.ask(question, tokens=400)

    assert said["streamed"] == said["whole"]
    assert said["streamed"].startswith(question.answer)
    assert said["pieces"] > 3


def test_a_killed_engine_comes_back_and_the_next_request_is_answered(served: Deployed) -> None:
    question = questions()[2]
    (before,) = served.engine_pods()
    assert served.in_engine(KILL_ENGINE).split()

    said = served.ask(question)

    assert (said["streamed"], said["whole"]) == (question.answer, question.answer)
    served.wait_ready()
    (after,) = served.engine_pods()
    assert after["metadata"]["name"] == before["metadata"]["name"]
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_deleted_engine_pod_is_replaced_and_the_next_request_is_answered(served: Deployed) -> None:
    question = questions()[3]
    (before,) = served.engine_pods()
    name = before["metadata"]["name"]
    served.node.kubectl("delete", "pod", name, "-n", served.namespace, "--wait=false")

    said = served.ask(question)

    assert (said["streamed"], said["whole"]) == (question.answer, question.answer)
    served.node.kubectl("wait", "pod", name, "-n", served.namespace, "--for=delete", "--timeout=60s")
    served.wait_ready()
    (after,) = served.engine_pods()
    assert after["metadata"]["name"] != name


class Asking:
    """Keeps asking in a thread of its own until the block ends; `failures` is what went wrong."""

    def __init__(self, served: Deployed, question: Question) -> None:
        self._served, self._question = served, question
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.answered = 0
        self.failures: list[str] = []

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                said = self._served.ask(self._question)
            except CommandFailed as error:
                self.failures.append(str(error))
                continue
            if (said["streamed"], said["whole"]) != (self._question.answer, self._question.answer):
                self.failures.append(json.dumps(said))
            self.answered += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_a_change_of_the_strategy_converges_and_no_request_fails_meanwhile(served: Deployed) -> None:
    planned = served.status()["plan"]["strategy"]
    wanted = "NoBuffer" if planned != "NoBuffer" else "ExtraBuffer"
    pods = everything(served)["Pod"]

    with Asking(served, chat("Count from 3 to 9.")) as asking:
        served.patch({"stateCache": {"strategy": wanted}})
        served.wait_settled()

    assert asking.failures == []
    assert asking.answered > 0
    assert served.status()["plan"]["strategy"] == wanted
    assert served.condition("Ready")["status"] == "True"
    assert json.loads(served.in_engine(ADMIN_PLAN))["strategy"] == wanted
    assert everything(served)["Pod"] == pods, "engines take a strategy over while they serve"
    question = questions()[1]
    assert served.ask(question)["streamed"] == question.answer


def test_no_request_fails_while_pods_are_replaced_added_evicted_and_operators_die(
    served: Deployed,
) -> None:
    """All in one course: each start of the traffic takes as long as one of its phases."""
    course = Course(served)

    with course.traffic(streams=8, rate=6):
        with course.phase("clients are asked for keys, and every pod is replaced by one with a key"):
            ask_for_keys(served, True)
        refused = course.without_key()
        with course.phase("the only gateway is evicted, and all operators killed"):
            kill_operators(served, Random(0), longest=0)
            evict(served, "gateway", 1)
        with course.phase("a second engine, and the first one evicted"):
            scale(served, 2)
            evict(served, "engine", 1)
        with course.phase("nobody is asked for keys any more, and one engine is enough"):
            ask_for_keys(served, False, engines=1)
        taken = course.without_key()
        course.wait_answered_in_all(500)

    assert course.failures == []
    assert (refused, taken) == (401, 200)
    assert sum(one.streamed for one in course.requests) >= 400


@pytest.mark.long
def test_another_operator_takes_over_from_one_that_dies_and_acts(served: Deployed) -> None:
    course = Course(served)

    with course.traffic(streams=4, rate=10):
        with course.phase("the operator that acts is killed"):
            kill_leader(served)
        with course.phase("a second gateway, made by the one that took over"):
            served.patch({"gateway": {"replicas": 2}})
            settle(served, "gateway", 2)
        served.patch({"gateway": {"replicas": 1}})
        settle(served, "gateway", 1)
        course.wait_answered_in_all(50)

    assert course.failures == []


def everything(deployed: Deployed) -> dict[str, set[str]]:
    """Return the names of what belongs to the object, by kind."""
    kinds = (
        "deployments", "replicasets", "pods", "services", "endpointslices", "configmaps", "secrets",
        "serviceaccounts", "roles", "rolebindings", "networkpolicies", "poddisruptionbudgets",
        "persistentvolumeclaims",
    )  # fmt: skip
    found: dict[str, set[str]] = {}
    for item in deployed.node.list(",".join(kinds), deployed.namespace):
        name = item["metadata"]["name"]
        if name.startswith(deployed.name):
            found.setdefault(item["kind"], set()).add(name)
    return found


def test_deleting_the_object_removes_everything_it_made(installed: Node, namespace: str) -> None:
    deployed = Deployed(installed, namespace)
    deployed.apply()
    both = {"quick-start", "quick-start-engine"}

    def whole() -> bool:
        # Kind after kind is listed while the operator still makes them.
        found = everything(deployed)
        named = both <= found.get("Deployment", set()) & found.get("Service", set())
        return named and len(found) >= 11 and len(found.get("Pod", ())) == 2

    installed.wait_for(whole, "all children and their pods")

    installed.kubectl("delete", "mdep", "quick-start", "-n", namespace, "--timeout=30s")

    left = everything(deployed)

    def gone() -> bool:
        left.clear()
        left.update(everything(deployed))
        return not left

    try:
        installed.wait_for(gone, "all children to be gone", timeout=120)
    except ClusterError as error:
        raise AssertionError(f"left: {left}") from error
    assert installed.get("mdep", "quick-start", namespace) is None


@pytest.mark.long
def test_gateways_that_are_deleted_while_they_start_end_at_once(installed: Node, namespace: str) -> None:
    deployed = Deployed(installed, namespace)
    deployed.apply()
    deleted: set[str] = set()

    def gateways() -> dict[str, Any]:
        mine = "app.kubernetes.io/instance=quick-start,app.kubernetes.io/component=gateway"
        return {one["metadata"]["name"]: one for one in installed.list("pods", namespace, mine)}

    def placed() -> str | None:
        return next(
            (n for n, one in gateways().items() if "nodeName" in one["spec"] and n not in deleted), None
        )

    for wait in range(8):
        name = installed.wait_for(placed, "a gateway that a node has begun to start", timeout=60)
        # The node starts what it has begun and then ends it at once; which moment that is differs.
        time.sleep(wait / 10)
        installed.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        deleted.add(name)

    # Far less than the grace period, which is that of the answers that may be under way.
    installed.wait_for(lambda: not deleted & set(gateways()), "them to be gone", timeout=60)


def test_plan_mode_shows_the_plan_and_makes_nothing(installed: Node, namespace: str) -> None:
    deployed = Deployed(installed, namespace)

    deployed.apply(mode="Plan")

    status = installed.wait_for(
        lambda: found if "plan" in (found := deployed.status()) else None, "the plan in the status"
    )
    assert status["plan"]["slots"] > 0
    planned = deployed.condition("Planned")
    assert planned["status"] == "True"
    assert everything(deployed) == {}
