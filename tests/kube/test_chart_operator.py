"""The operator at work with the account and the arguments that the chart gives it, and with nothing more."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefork import FORK_SERVER
from testcluster.control_plane import ControlPlane

pytestmark = pytest.mark.kube

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/mambaserve"
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


def as_account(plane: ControlPlane, namespace: str, account: str, path: Path) -> Path:
    """A kubeconfig of a ServiceAccount."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    token = plane.kubectl("create", "token", account, "-n", namespace).strip()
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(params=["one namespace", "the whole cluster"])
def installed(
    request: pytest.FixtureRequest, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[Installed]:
    helm = control_plane.helm
    options = ["--set", f"watchNamespaces={{{namespace}}}"] if request.param == "one namespace" else []
    helm("install", "rel", str(CHART), "-n", namespace, "--take-ownership", *options)
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
                "MAMBASERVE_LEASE_NAMESPACE": namespace,
                "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip
        try:
            yield Installed(control_plane, namespace, log)
        finally:
            process.terminate()
            process.wait(20)
            helm("uninstall", "rel", "-n", namespace)


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
        ("poddisruptionbudget", "quick-start-engine"),
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
    time.sleep(1)
    lines = [
        line
        for line in installed.log.splitlines()
        if re.search(r"(?i)forbidden|cannot (get|list|watch)", line)
        # Other tests' namespaces may just be going away, and nobody may write into those.
        and "being terminated" not in line
    ]
    assert lines == []
