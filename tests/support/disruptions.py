"""Disruptions of a deployment that serves, one after the other, and the results of requests in that time.

Used by `tests/e2e` with few of them and by `tests/zero_drop` with all.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mamba_api import names
from mamba_operator.render.access import mounts_key
from product import SYSTEM, Deployed
from testcluster.errors import CommandFailed
from testcluster.host_view import HOST_IMAGE, TREE

TRAFFIC = "traffic"
KEYS = "client-keys"
"""Secret with the clients' keys."""
CLIENT_KEY = "zero-drop-0123456789"
"""Shown with every request, asked for or not."""
ASK_WITHOUT_KEY = """
import sys, urllib.error, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
STRATEGIES = ("NoBuffer", "ExtraBufferLazy", "ExtraBuffer")
ENDED = 480.0
"""Seconds that pods may take to be replaced, one after the other: load, `minReadyTime` and drain of each."""

OPERATORS = f"{names.LABEL_COMPONENT}=operator"
TAKEN = 60.0
"""Seconds for another operator to take over: four times what a silent holder is waited for."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One disruption, from the first command until all pods are in their place. Seconds of the epoch."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Seconds of the epoch."""

    begin: float
    first: float | None
    """When the first piece of its answer came; None: none did."""
    end: float
    streamed: bool
    error: str | None
    """Why it failed; None: its answer was right."""


@dataclass
class Course:
    """Record of a run: the phases as they end, and the requests once the traffic has ended."""

    deployed: Deployed
    phases: list[Phase] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    broken: str | None = None
    """Why it ended before its end."""

    @property
    def failures(self) -> list[str]:
        """When, in which phase and why a request failed."""
        return [
            f"{self.during(one)}: {one.end - one.begin:.1f} s: {one.error}"
            for one in self.requests
            if one.error is not None
        ]

    def during(self, request: Request) -> str:
        """Return the phases that overlap the request."""
        seen = [one.name for one in self.phases if one.begin <= request.end and request.begin <= one.end]
        return ", ".join(seen) or "between"

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the block as one disruption."""
        begin = time.time()
        yield
        self.phases.append(Phase(name, begin, time.time()))
        print(f"{time.time() - begin:6.1f} s  {name}", flush=True)

    @contextmanager
    def traffic(self, streams: int, rate: float, tokens: int = 0, *, salted: bool = False) -> Iterator[None]:
        """Send requests all the time, `streams` at once and `rate` in a second at most.

        With `tokens`, the requests want whole answers of that length, which load the engines and not the
        client. `salted`: no request can resume what another one left in a cache.
        """
        deployed = self.deployed
        url = f"http://{deployed.name}.{deployed.namespace}.svc/v1"
        script = f"{TREE}/tests/support/stream_traffic.py"
        container = {
            "name": "main", "image": HOST_IMAGE,
            "command": ["python", script, url, "tiny-recall", str(streams), str(rate), str(tokens)],
            "env": [
                {"name": "OPENAI_API_KEY", "value": CLIENT_KEY},
                {"name": "SALTED", "value": "1" if salted else ""},
            ],
            "resources": {"requests": {"cpu": "200m"}},
        }  # fmt: skip
        spec = {"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [container]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": TRAFFIC}, "spec": spec}
        deployed.node.apply(pod, deployed.namespace)
        deployed.node.wait_for(lambda: self.answered(1), "the first answers", timeout=90)
        try:
            yield
        finally:
            ending = ["python", "-c", "import os; os.kill(1, 15)"]
            self._kubectl("exec", TRAFFIC, "--", *ending)
            ended = "--for=jsonpath={.status.phase}=Succeeded"
            self._kubectl("wait", "pod", TRAFFIC, ended, "--timeout=200s", timeout=210)
            lines = self._kubectl("logs", TRAFFIC).splitlines()
            self.requests = [Request(**json.loads(line)) for line in lines]
            self._kubectl("delete", "pod", TRAFFIC)

    def answered(self, count: int) -> bool:
        """Return whether that many requests have ended."""
        return self._count() >= count

    def _count(self) -> int:
        try:
            return len(self._kubectl("logs", TRAFFIC).splitlines())
        except CommandFailed:  # its container is not there yet
            return 0

    def wait_answered(self, more: int, timeout: float = 600.0) -> None:
        """Wait until that many more requests than now have ended."""
        self.wait_answered_in_all(self._count() + more, timeout)

    def wait_answered_in_all(self, wanted: int, timeout: float = 600.0) -> None:
        """Wait until that many requests have ended."""
        self.deployed.node.wait_for(lambda: self.answered(wanted), f"{wanted} answers", timeout=timeout)

    def without_key(self) -> int:
        """Return the status of the answer to a request that shows no key."""
        url = f"http://{self.deployed.name}.{self.deployed.namespace}.svc/v1/models"
        return int(self._kubectl("exec", TRAFFIC, "--", "python", "-c", ASK_WITHOUT_KEY, url))

    def _kubectl(self, verb: str, *arguments: str, timeout: float = 120.0) -> str:
        where = ["-n", self.deployed.namespace]
        return self.deployed.node.kubectl(verb, *where, *arguments, timeout=timeout)


def pods(deployed: Deployed, component: str) -> list[dict[str, Any]]:
    """Return pods of a component, those that are about to end included."""
    selector = f"{names.LABEL_INSTANCE}={deployed.name},{names.LABEL_COMPONENT}={component}"
    return deployed.node.list("pods", deployed.namespace, selector)


def settle(deployed: Deployed, component: str, count: int, gone: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    """Wait until exactly that many pods are ready, none of the named ones among them."""

    def settled() -> bool:
        current = pods(deployed, component)
        ready = [one for one in current if _ready(one) and "deletionTimestamp" not in one["metadata"]]
        return len(current) == len(ready) == count and not gone & _names(current)

    deployed.node.wait_for(settled, f"{count} {component} pods", timeout=ENDED)


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _names(found: list[dict[str, Any]]) -> set[str]:
    return {one["metadata"]["name"] for one in found}


def scale(deployed: Deployed, count: int) -> None:
    """Run `kubectl scale`."""
    where = ["-n", deployed.namespace, f"--replicas={count}"]
    deployed.node.kubectl("scale", f"mdep/{deployed.name}", *where)
    settle(deployed, "engine", count)


def replace_engines(deployed: Deployed, change: dict[str, Any]) -> None:
    """Change `spec.engine` so that new pods are needed."""
    before = _names(pods(deployed, "engine"))
    deployed.patch({"engine": change})
    settle(deployed, "engine", len(before), before)


def switch_strategies(deployed: Deployed) -> None:
    """Switch to each strategy once."""
    for strategy in STRATEGIES:
        deployed.patch({"stateCache": {"strategy": strategy}})
        generation = deployed.node.get("mdep", deployed.name, deployed.namespace)["metadata"]["generation"]  # type: ignore[index]
        deployed.node.wait_for(
            lambda wanted=generation: deployed.status().get("observedGeneration") == wanted,  # type: ignore[misc]
            "the operator to see the strategy",
        )
        deployed.wait_settled()


def evict(deployed: Deployed, component: str, count: int) -> None:
    """Evict `count` pods, one after the other, by the API that drains of nodes use."""
    for pod in pods(deployed, component)[:count]:
        name, pod_count = pod["metadata"]["name"], len(pods(deployed, component))
        eviction = {
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": name, "namespace": deployed.namespace},
        }  # fmt: skip
        path = f"/api/v1/namespaces/{deployed.namespace}/pods/{name}/eviction"
        status, answer = deployed.node.api.request("POST", path, eviction)
        assert status == 201, answer
        settle(deployed, component, pod_count, {name})


def roll_gateways(deployed: Deployed, value: str) -> None:
    """Change the pod template of the gateway."""
    before = _names(pods(deployed, "gateway"))
    template = {"metadata": {"annotations": {"example.com/rolled": value}}}
    deployed.patch({"gateway": {"podTemplate": template}})
    settle(deployed, "gateway", len(before), before)


def ask_for_keys(deployed: Deployed, asked: bool, *, engines: int | None = None) -> None:
    """Add or remove `spec.gateway.auth`, and with it the key that engines require of gateways.

    `engines`: number of engines from then on, set by the same change; None = as many as before.
    """
    if asked:
        data = {names.API_KEYS_KEY: f"{CLIENT_KEY} traffic\n"}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS}, "stringData": data}
        deployed.node.apply(secret, deployed.namespace)
    before = {component: _names(pods(deployed, component)) for component in ("engine", "gateway")}
    change: dict[str, Any] = {"gateway": {"auth": {"secretRef": {"name": KEYS}} if asked else None}}
    deployed.patch(change if engines is None else {**change, "replicas": engines})

    def switched() -> bool:
        old_pods = [one for component in before for one in pods(deployed, component)]
        return all(mounts_key(one) is asked for one in old_pods)

    deployed.node.wait_for(switched, "pods with a key" if asked else "pods without one", timeout=ENDED)
    for component, those in before.items():
        count = len(those) if engines is None or component != "engine" else engines
        settle(deployed, component, count, those)


def drain_node(deployed: Deployed, away: float) -> None:
    """Evict all engines of the only node, which takes pods again `away` seconds later."""
    (node,) = _names(deployed.node.list("nodes"))
    before = _names(pods(deployed, "engine"))
    selector = f"--pod-selector={names.LABEL_INSTANCE}={deployed.name},{names.LABEL_COMPONENT}=engine"
    where = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"]
    deployed.node.kubectl("drain", node, selector, *where, timeout=130)
    time.sleep(away)
    deployed.node.kubectl("uncordon", node)
    settle(deployed, "engine", len(before), before)


def kill_operators(deployed: Deployed, rng: Random, longest: float) -> None:
    """Kill all operators at once; the next ones start within `longest` seconds after that."""
    with contextlib.suppress(CommandFailed):  # it is between two lives
        deployed.node.kubectl(
            "delete", "pod", "-n", SYSTEM, "-l", OPERATORS, "--grace-period=0", "--force", timeout=60
        )
    time.sleep(rng.uniform(0, longest))


def kill_leader(deployed: Deployed) -> None:
    """Kill the acting operator without notice, and wait until another one acts.

    Mostly the standby acts next, or else the pod created for the killed one, which may look at the lease
    sooner.
    """
    node = deployed.node

    def ready() -> set[str]:
        operators = node.list("pods", SYSTEM, OPERATORS)
        return _names(
            [one for one in operators if _ready(one) and "deletionTimestamp" not in one["metadata"]]
        )

    def acting() -> str:
        lease = node.get("leases", names.LEASE_NAME, SYSTEM)
        holder = ((lease or {}).get("spec") or {}).get("holderIdentity") or ""
        return str(holder).rpartition("-")[0]  # what follows is its process

    def one_of_two() -> str | None:
        leader, pods = acting(), ready()
        return leader if leader in pods and len(pods) > 1 else None

    leader = node.wait_for(one_of_two, "an operator that acts and one that stands by", timeout=ENDED)
    node.kubectl("delete", "pod", "-n", SYSTEM, leader, "--grace-period=0", "--force", timeout=60)
    node.wait_for(
        lambda: acting() not in ("", leader), f"another operator in the place of {leader}", timeout=TAKEN
    )


def restart_api(deployed: Deployed, away: float) -> None:
    """Crash the API server and etcd, and start them `away` seconds later with their written data."""
    node = deployed.node
    with node.api_server_down():
        node.etcd.stop(grace=0)
        time.sleep(away)
        node.start_etcd()
