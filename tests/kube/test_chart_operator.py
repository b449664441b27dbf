"""The operator at work with the account and the arguments that the chart gives it, and with nothing more."""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mamba_api import names
from mamba_operator.pass_events import EventContent, event_manifest, pending_event
from prefork import FORK_SERVER
from service_account import as_account
from testcluster.audit import Right
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/mambaserve"
POOLS = ROOT / "tests/data/inferencepools.yaml"
EVERY_CHILD = {
    "apiVersion": "serving.mambaserve.io/v1alpha1",
    "kind": "MambaDeployment",
    "metadata": {"name": "full"},
    "spec": {
        "model": {"uri": "hf://org/model", "cache": {"size": "1Gi"}},
        # Nodes say how much memory a GPU has.
        "resources": {"gpus": 1},
        "gateway": {"inferencePool": {"proxyNamespace": "envoy"}, "replicas": 2},
    },
}
KINDS = (
    "serviceaccounts,roles,rolebindings,configmaps,services,networkpolicies,poddisruptionbudgets,deployments,"
    "inferencepools.inference.networking.k8s.io"
)
QUICK_START = (ROOT / "examples/01-quick-start/mamba.yaml").read_text()


class Installed:
    """A release of the chart, and its operator run here, because this cluster has no nodes to run pods."""

    def __init__(self, plane: ControlPlane, namespace: str, log: Path) -> None:
        self.plane = plane
        self.namespace = namespace
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, kind: str, name: str) -> dict[str, Any]:
        found = self.plane.wait_for(
            lambda: self.plane.get(kind, name, self.namespace),
            f"{kind} {name}; the log is {self.log[-3000:]}",
        )
        assert found is not None
        return found


@pytest.fixture
def installed(control_plane: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Installed]:
    helm = control_plane.helm
    control_plane.kubectl("apply", "--server-side", "-f", str(POOLS))
    helm("install", "rel", str(CHART), "-n", namespace, "--set", f"watchNamespaces={{{namespace}}}")
    release = control_plane.get("deployment", "rel-mambaserve", namespace)
    assert release is not None
    container = release["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["mambaserve"]
    arguments = [re.sub(r"^(--liveness-port)=\d+$", r"\1=0", argument) for argument in container["args"]]
    account = release["spec"]["template"]["spec"]["serviceAccountName"]
    kubeconfig = as_account(control_plane, namespace, account, tmp_path / "kubeconfig")
    log = tmp_path / "operator.log"
    with log.open("wb", buffering=0) as out:
        process = FORK_SERVER.start(
            "-m", "mamba_cli", *arguments, cwd=ROOT, stdout=out.fileno(), stderr=out.fileno(),
            env={
                **os.environ,
                "MAMBASERVE_KUBECONFIG": str(kubeconfig),
                "MAMBASERVE_LEASE_NAMESPACE": namespace, "MAMBASERVE_LEASE": "rel-mambaserve-operator",
                "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip
        try:
            yield Installed(control_plane, namespace, log)
        finally:
            process.terminate()
            process.wait(20)
            helm("uninstall", "rel", "-n", namespace)
            control_plane.kubectl("delete", "-f", str(POOLS), "--ignore-not-found", "--wait=true")


def rights(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    return {
        (verb, group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def granted(installed: Installed) -> set[Right]:
    """Return all that the release binds to the operator's account."""
    plane, namespace = installed.plane, installed.namespace
    roles = [plane.get("role", f"rel-mambaserve{part}", namespace) for part in ("", "-lease")]
    roles.append(plane.get("clusterrole", f"{namespace}-rel-mambaserve"))
    return rights(rule for role in roles if role for rule in role["rules"])


def serve_at_one_address(installed: Installed) -> None:
    """Make a MambaGateway and wait for its status."""
    of = {"apiVersion": "serving.mambaserve.io/v1alpha1", "kind": "MambaGateway"}
    installed.plane.apply({**of, "metadata": {"name": "team"}, "spec": {"selector": {}}}, installed.namespace)
    installed.plane.wait_for(
        lambda: (installed.plane.get("mgw", "team", installed.namespace) or {}).get("status"), "its status"
    )


def damage(installed: Installed) -> None:
    """Remove the record of the source from all children, so that each is applied again."""
    plane, namespace = installed.plane, installed.namespace
    kinds, mine = f"{KINDS},persistentvolumeclaims", "app.kubernetes.io/instance=full"
    plane.kubectl("annotate", kinds, "-l", mine, "-n", namespace, f"{names.ANNOTATION_SPEC_HASH}-")

    def mended() -> bool:
        found = plane.list(kinds, namespace, mine)
        return all(names.ANNOTATION_SPEC_HASH in one["metadata"].get("annotations", {}) for one in found)

    plane.wait_for(mended, "all children to be mended")


def leave_behind(installed: Installed) -> None:
    """Create a child of each kind that an earlier version had and this one deletes."""
    plane, namespace = installed.plane, installed.namespace
    copies = {}
    for one in plane.list(KINDS, namespace, "app.kubernetes.io/instance=full"):
        meta = {key: one["metadata"][key] for key in ("labels", "ownerReferences")}
        spec = {
            key: value for key, value in (one.get("spec") or {}).items() if not key.startswith("clusterIP")
        }
        rest = {key: value for key, value in one.items() if key not in ("metadata", "status", "spec")}
        copies[one["kind"]] = {
            **rest, **({"spec": spec} if spec else {}),
            "metadata": {**meta, "name": "full-left", "namespace": namespace},
        }  # fmt: skip
    plane.apply(list(copies.values()), namespace)
    assert len(copies) == len(KINDS.split(","))
    plane.kubectl("annotate", "mdep/full", "touched=1", "-n", namespace)
    plane.wait_for(
        lambda: not any(one["metadata"]["name"] == "full-left" for one in plane.list(KINDS, namespace)),
        "what was left behind to go",
    )


def shrink(installed: Installed) -> None:
    """Reduce two serving engines to one."""
    plane, namespace = installed.plane, installed.namespace
    selector = ",".join(f"{key}={value}" for key, value in names.selector("quick-start", "engine").items())

    def engines(count: int) -> None:
        patch = json.dumps({"spec": {"replicas": count}})
        plane.kubectl("patch", "mdep", "quick-start", "-n", namespace, "--type=merge", "-p", patch)
        plane.wait_for(
            lambda: installed.wait_for("deployment", "quick-start-engine")["spec"]["replicas"] == count,
            f"{count} engines to be asked for",
        )

    engines(2)
    plane.wait_for(lambda: len(plane.list("pods", namespace, selector)) == 2, "two engines")
    for pod in plane.list("pods", namespace, selector):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {
            "phase": "Running",
            "podIP": "127.0.0.9",
            "podIPs": [{"ip": "127.0.0.9"}],
            "conditions": [ready],
        }
        plane.kubectl(
            "patch", "pod", pod["metadata"]["name"], "-n", namespace, "--subresource=status", "--type=merge",
            "-p", json.dumps({"status": status}),
        )  # fmt: skip
    plane.wait_for(
        lambda: installed.wait_for("mdep", "quick-start")["status"].get("readyReplicas") == 2,
        "both to be ready",
    )
    engines(1)


def load_another_model(installed: Installed) -> None:
    """Change the model, so that its loader replaces the previous one."""
    plane, namespace = installed.plane, installed.namespace

    def loaders() -> set[str]:
        found = plane.list("jobs", namespace, "app.kubernetes.io/instance=full")
        return {one["metadata"]["name"] for one in found}

    before = plane.wait_for(loaders, "a loader")
    patch = json.dumps({"spec": {"model": {"uri": "hf://org/other"}}})
    plane.kubectl("patch", "mdep", "full", "-n", namespace, "--type=merge", "-p", patch)
    plane.wait_for(lambda: (now := loaders()) and not now & before, "another loader")


def repeat_an_event(installed: Installed) -> None:
    """Repeat an event of an earlier operator."""
    owner = installed.plane.get("mdep", "full", installed.namespace)
    assert owner
    news = EventContent("Normal", "Created", "Created Service full")
    before = event_manifest(pending_event(owner, news, datetime.now(UTC)), reporter="an earlier one")
    installed.plane.apply(before, installed.namespace)
    installed.plane.kubectl("delete", "service", "full", "-n", installed.namespace)

    def count() -> int:
        event = installed.plane.get("events", before["metadata"]["name"], installed.namespace) or {}
        return int(event.get("count", 0))

    installed.plane.wait_for(lambda: count() >= 2, "the event to be counted up")


def may_write(installed: Installed, account: str) -> list[dict[str, Any]]:
    """Return the rules by which a ServiceAccount may change anything, its questions about itself aside."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": installed.namespace},
    }
    groups = (
        "system:authenticated",
        "system:serviceaccounts",
        f"system:serviceaccounts:{installed.namespace}",
    )
    answer = installed.plane.kubectl(
        "create", "--validate=false", "-f", "-", "-o", "json",
        f"--as=system:serviceaccount:{installed.namespace}:{account}",
        *(f"--as-group={group}" for group in groups), stdin=json.dumps(review),
    )  # fmt: skip
    about_itself = {"authorization.k8s.io", "authentication.k8s.io"}
    return [
        rule
        for rule in json.loads(answer)["status"]["resourceRules"]
        if not set(rule["verbs"]) <= {"get", "list", "watch"} and not set(rule["apiGroups"]) <= about_itself
    ]


@pytest.mark.slow
def test_what_the_chart_grants_is_enough_to_serve_the_quick_start(installed: Installed) -> None:
    installed.plane.apply(QUICK_START, installed.namespace)
    for kind, name in (
        ("deployment", "quick-start-engine"),
        ("deployment", "quick-start"),
        ("service", "quick-start"),
        ("service", "quick-start-engine"),
        ("configmap", "quick-start-engine"),
        ("serviceaccount", "quick-start"),
        ("role", "quick-start"),
        ("rolebinding", "quick-start"),
        ("networkpolicy", "quick-start-engine"),
    ):
        installed.wait_for(kind, name)
    found = installed.plane.wait_for(
        lambda: (installed.plane.get("mdep", "quick-start", installed.namespace) or {}).get("status"),
        "a status",
    )
    assert {condition["type"] for condition in found["conditions"]} >= {"Planned", "Available", "Ready"}
    installed.plane.wait_for(
        lambda: [
            event
            for event in installed.plane.list("events", installed.namespace)
            if event["involvedObject"]["kind"] == "MambaDeployment"
        ],
        "an event",
    )
    # A change, a repair and a deletion use other verbs than the first apply.
    installed.plane.kubectl("delete", "service", "quick-start-engine", "-n", installed.namespace)
    installed.wait_for("service", "quick-start-engine")
    patch = json.dumps({"spec": {"gateway": {"replicas": 2}}})
    installed.plane.kubectl(
        "patch", "mdep", "quick-start", "-n", installed.namespace, "--type=merge", "-p", patch
    )
    installed.plane.wait_for(
        lambda: installed.wait_for("deployment", "quick-start")["spec"]["replicas"] == 2,
        "the change to arrive",
    )
    shrink(installed)
    installed.plane.apply(EVERY_CHILD, installed.namespace)
    installed.wait_for("inferencepools.inference.networking.k8s.io", "full")
    installed.wait_for("persistentvolumeclaim", "full-model")
    installed.wait_for("deployment", "full")
    serve_at_one_address(installed)
    damage(installed)
    leave_behind(installed)
    load_another_model(installed)
    repeat_an_event(installed)
    held = rights((installed.plane.get("role", "full", installed.namespace) or {})["rules"])
    # An API server that checks owner references asks for that one itself, and its log has no line of it.
    silent = {
        ("update", "serving.mambaserve.io", "mambadeployments/finalizers"),
        # A Job is made and never changed, unless one of ours has its name and no watch has shown it yet.
        ("patch", "batch", "jobs"),
        # A unit test shows that a gateway needs these where the cluster has the kind.
        *((verb, "gateway.networking.k8s.io", "httproutes") for verb in ("create", "patch", "delete")),
        ("update", "serving.mambaserve.io", "mambagateways/finalizers"),
    }
    account = f"{installed.namespace}:rel-mambaserve"
    installed.plane.wait_for(
        lambda: ("update", "coordination.k8s.io", "leases") in installed.plane.used_by(account),
        "the lease to be renewed",
    )
    used = installed.plane.used_by(account)
    assert used - granted(installed) == set(), "asked for and not granted"
    # Of what it may, it gives gateways what they need: nobody can give what they do not hold.
    assert granted(installed) - used - held - silent == set(), "granted and not used"
    [writes] = may_write(installed, "full")
    assert (writes["verbs"], writes["resources"], writes["resourceNames"]) == (
        ["patch"], ["configmaps"], ["full-wake"],
    )  # fmt: skip
    time.sleep(1)
    lines = [
        line
        for line in installed.log.splitlines()
        if re.search(r"(?i)forbidden|cannot (get|list|watch)", line)
        # Other tests' namespaces may just be going away, and nobody may write into those.
        and "being terminated" not in line
    ]
    assert lines == []
