"""Three models behind one MambaGateway: one wakes from zero, one rejects a bad change, one is deleted.

Clients ask all the time by one address, each for one model. What befalls a model costs the others no request.
"""

import itertools
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from failing_engine import FAILING_ENGINE
from parsed_yaml import load_yaml
from product import CLIENT, EXAMPLE, QUICK, Deployed, chart
from testcluster.node import Node

pytestmark = [pytest.mark.e2e, pytest.mark.long]

TEAM = {"team": "one-address"}
KEYS = {"operations": "sk-operations-0123456789", "web": "sk-web-0123456789"}
WEIGHT = 10
"""Per cent of the conversations that the candidate gets."""
STEP_REQUESTS = 500
"""Requests after which the step of the candidate would end."""
NUMBERS = itertools.count()
ENDS_WHEN_TOLD = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os._exit(0))"
ASKING = """
import json, os, sys, time, urllib.error, urllib.request
url, key, model, path = sys.argv[1:]
counts, number = {}, 0
while not os.path.exists(path):
    # Conversations of their own, so that each one is given to a revision anew.
    body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": f"{number} or more?"}]}
    asked = urllib.request.Request(
        url + "/chat/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    try:
        outcome = str(urllib.request.urlopen(asked, timeout=120).status)
    except urllib.error.HTTPError as error:
        outcome = f"{error.code} {json.loads(error.read())['error'].get('code')}"
    except OSError as error:
        outcome = f"broken {error}"
    counts[outcome] = counts.get(outcome, 0) + 1
    number += 1
    time.sleep(0.05)
print(json.dumps(counts))
"""
ASK_ONCE = """
import json, sys, urllib.error, urllib.request
url, key, path = sys.argv[1:4]
body = None
if sys.argv[4:]:
    body = json.dumps({"model": sys.argv[4], "prompt": "a=1 a?", "max_tokens": 1}).encode()
headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
asked = urllib.request.Request(url + path, body, headers)
try:
    with urllib.request.urlopen(asked, timeout=180) as answer:
        print(json.dumps([answer.status, json.loads(answer.read())]))
except urllib.error.HTTPError as error:
    print(json.dumps([error.code, json.loads(error.read())]))
"""


@dataclass
class Asking:
    """Requests for one model, one after the other, until they are told to end."""

    team: "Team"
    model: str
    said: str = ""
    ended: bool = False
    enough: str = field(init=False)
    """File in the client whose existence ends the requests."""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.enough = f"/tmp/enough-{next(NUMBERS)}"
        self.thread = threading.Thread(target=self._ask)
        self.thread.start()

    def _ask(self) -> None:
        self.said = self.team.python(ASKING, KEYS["operations"], self.model, self.enough, timeout=280)

    def end(self) -> Counter[str]:
        """End the requests and return how many had which outcome."""
        self.ended = True
        self.team.in_client("touch", self.enough)
        self.thread.join(150)
        return Counter(json.loads(self.said))


@dataclass(frozen=True)
class Team:
    """A MambaGateway and its deployments in a namespace, with a pod to ask it from."""

    node: Node
    namespace: str

    def apply(self, manifest: dict[str, Any]) -> None:
        self.node.apply({"apiVersion": "serving.mambaserve.io/v1alpha1", **manifest}, self.namespace)

    def deployed(self, name: str) -> Deployed:
        return Deployed(self.node, self.namespace, name)

    def deploy(self, name: str, **spec: Any) -> None:
        """Apply the quick start under this name, as a model of the address."""
        base = load_yaml(EXAMPLE.read_text())["spec"]
        model = {**base["model"], "servedName": name}
        resources = {**base.get("resources", {}), "cpu": "100m"}
        spec = {**base, "model": model, "resources": resources, "rollout": QUICK, **spec}
        self.apply({"kind": "MambaDeployment", "metadata": {"name": name, "labels": TEAM}, "spec": spec})

    def in_client(self, *command: str, stdin: str = "", timeout: float = 200) -> str:
        where = ["exec", "-i", CLIENT, "-n", self.namespace, "--", *command]
        return self.node.kubectl(*where, stdin=stdin, timeout=timeout)

    def python(self, code: str, *arguments: str, timeout: float = 200) -> str:
        url = f"http://team.{self.namespace}.svc/v1"
        return self.in_client("python", "-", url, *arguments, stdin=code, timeout=timeout)

    def once(self, key: str, path: str, *model: str) -> tuple[int, Any]:
        status, body = json.loads(self.python(ASK_ONCE, KEYS[key], path, *model))
        return status, body

    def models(self, key: str = "operations") -> dict[str, str]:
        """Return the state of each model that a key sees."""
        return {card["id"]: card["state"] for card in self.once(key, "/models")[1]["data"]}

    @contextmanager
    def asked(self, *models: str) -> Iterator[dict[str, Asking]]:
        """Ask for these models during the block. Only 200 is right, where the block does not look itself."""
        asking = {model: Asking(self, model) for model in models}
        try:
            yield asking
        finally:
            outcomes = {model: one.end() for model, one in asking.items() if not one.ended}
            print(json.dumps(outcomes), flush=True)
        assert {model: set(counts) for model, counts in outcomes.items()} == {
            model: {"200"} for model in outcomes
        }


@pytest.fixture
def team(node: Node, namespace: str) -> Iterator[Team]:
    """Yield three models behind one address, all of them answering."""
    with chart(node):
        team = Team(node, namespace)
        keys = "".join(f"{key} {name}\n" for name, key in KEYS.items())
        secret = {"kind": "Secret", "metadata": {"name": "team-keys"}, "stringData": {"api-keys": keys}}
        node.apply({"apiVersion": "v1", **secret}, namespace)
        team.deploy("steady")
        step = {"weight": WEIGHT, "requests": STEP_REQUESTS}
        team.deploy("careful", rollout={**QUICK, "canary": {"steps": [step]}})
        team.deploy("sleeper", scaling={"minReplicas": 0, "maxReplicas": 1, "scaleDownDelay": "20s"})
        access = [{"name": "operations", "models": ["*"]}, {"name": "web", "models": ["steady"]}]
        prices = {"currency": "EUR", "deviceHour": 2.5}
        spec = {
            "selector": {"matchLabels": TEAM}, "auth": {"secretRef": {"name": "team-keys"}}, "keys": access,
            "usage": {"readers": ["operations"], "prices": prices},
        }  # fmt: skip
        team.apply({"kind": "MambaGateway", "metadata": {"name": "team"}, "spec": spec})
        team.deployed("steady").start_client()
        for name in ("steady", "careful"):
            team.deployed(name).wait_ready()
        node.kubectl(
            "wait", "mgw/team", "-n", namespace, "--for=condition=Ready", "--timeout=200s", timeout=210
        )
        yield team


@pytest.mark.timeout(900)
def test_what_befalls_one_of_three_models_costs_the_others_no_request(team: Team) -> None:
    node, careful = team.node, team.deployed("careful")
    node.wait_for(lambda: not team.deployed("sleeper").engine_pods(), "the sleeper at zero", timeout=240)
    listed = {"steady": "ready", "careful": "ready", "sleeper": "stopped"}
    node.wait_for(lambda: team.models() == listed, "the list of models", timeout=120)

    # A key sees its own models alone, and no answer tells it a name.
    assert team.models("web") == {"steady": "ready"}
    forbidden, unknown = (team.once("web", "/completions", name) for name in ("careful", "nobody"))
    assert (forbidden[0], forbidden[1]["error"]["code"]) == (403, "model_forbidden")
    assert json.dumps(unknown).replace("nobody", "careful") == json.dumps(forbidden)

    with team.asked("steady", "careful"):
        status, body = team.once("operations", "/completions", "sleeper")
        assert (status, body.get("model")) == (200, "sleeper"), body

    with team.asked("steady", "careful") as asking:
        program = ENDS_WHEN_TOLD + FAILING_ENGINE.replace("tiny-recall", "careful")
        engine = {"name": "engine", "command": ["python", "-c", program], "args": []}
        careful.patch({"podTemplate": {"spec": {"containers": [engine]}}})
        node.wait_for(
            lambda: careful.status().get("rollout", {}).get("failedRevision"), "the abort", timeout=200
        )
        node.wait_for(lambda: "canary" not in careful.status(), "the end of the candidate", timeout=60)
        outcomes = asking["careful"].end()
    print("canary", dict(outcomes), careful.status()["rollout"]["message"], flush=True)
    assert careful.status()["rollout"]["reason"] == "ErrorRateRose"
    failed = sum(count for outcome, count in outcomes.items() if outcome != "200")
    # All that a candidate with this weight could have failed, with room for chance.
    assert 0 < failed <= 2 * WEIGHT / 100 * outcomes.total()

    with team.asked("careful"):
        node.kubectl("delete", "mdep", "steady", "-n", team.namespace, "--wait=false")
        node.wait_for(lambda: "steady" not in team.models(), "the model to leave", timeout=180)
        assert team.once("operations", "/completions", "steady")[0] == 404

    status, usage = team.once("operations", "/usage?by=model")
    assert (status, usage["currency"]) == (200, "EUR")
    assert {"careful", "steady"} <= {line["name"] for line in usage["data"] if line["requests"]}
