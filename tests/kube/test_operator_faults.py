"""The operator dies, doubles, or loses the API server: what was asked for comes about all the same."""

import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mamba_operator.process.settings import OperatorSettings
from operator_objects import nano_config
from operator_process import running_operator
from property_runs import BUDGET
from testcluster.control_plane import ControlPlane

pytestmark = [pytest.mark.kube, pytest.mark.slow]

OURS = "app.kubernetes.io/managed-by=mambaserve-operator"
KINDS = (
    "secrets,serviceaccounts,roles,rolebindings,configmaps,services,networkpolicies,poddisruptionbudgets,"
    "deployments"
)
CHILDREN = 11
KILLS = 10 if BUDGET == "large" else 2
"""Operators that are killed before the one that converges."""
SHORT_LEASE = {"MAMBASERVE_LEASE_DURATION": "6"}
"""For tests that kill a holder: the next one waits so long."""
DEFAULT_LEASE = {
    f"MAMBASERVE_{name.upper()}": str(OperatorSettings.model_fields[name].default)
    for name in ("lease_duration", "renew_every")
}


def deployment(name: str, **spec: Any) -> dict[str, Any]:
    model = {"uri": "pvc://models/nano", "config": nano_config()}
    return {
        "apiVersion": "serving.mambaserve.io/v1alpha1",
        "kind": "MambaDeployment",
        "metadata": {"name": name},
        "spec": {"model": model, "memory": {"deviceMemory": "80Gi"}, **spec},
    }


def count(plane: ControlPlane, namespace: str) -> int:
    return len(plane.list(KINDS, namespace, OURS))


def planned(plane: ControlPlane, namespace: str, *names: str) -> None:
    objects = [f"mdep/{name}" for name in names]
    plane.kubectl("wait", "--for=condition=Planned", *objects, "-n", namespace, "--timeout=60s")


def test_an_operator_killed_at_random_moments_converges_after_its_restart(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    names = ["a", "b"]
    plane.apply([deployment(name) for name in names], namespace)
    moments = random.Random(7)
    for number in range(KILLS):
        log = tmp_path / f"operator-{number}.log"
        where = ["--namespace", namespace]
        with running_operator(plane.kubeconfig, log, where, **SHORT_LEASE) as operator:
            operator.wait_for("lease_taken", timeout=60)
            # The first children appear within a second or so: the kill falls somewhere among the writes.
            time.sleep(moments.uniform(0.3, 2.0))
            operator.kill()

    with running_operator(plane.kubeconfig, tmp_path / "last.log", ["--namespace", namespace]):
        planned(plane, namespace, *names)
        plane.wait_for(lambda: count(plane, namespace) == len(names) * CHILDREN, "all children", timeout=60)

    tokens = {one["metadata"]["uid"] for one in plane.list("secrets", namespace, OURS)}
    assert len(tokens) == len(names)


def test_of_two_operators_one_acts_and_the_other_takes_over_when_it_dies(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                running_operator(
                    plane.kubeconfig, tmp_path / f"{name}.log", ["--namespace", namespace], **SHORT_LEASE
                )
            )
            for name in ("first", "second")
        )
        plane.apply(deployment("nano"), namespace)
        planned(plane, namespace, "nano")
        plane.wait_for(lambda: count(plane, namespace) == CHILDREN, "all children", timeout=60)
        leaders = [one for one in (first, second) if "lease_taken" in one.text]
        [leader] = leaders
        [standby] = [one for one in (first, second) if one is not leader]
        standby.wait_for("lease_awaited")
        assert standby.get("/healthz") == "ok"
        assert "child_changed" not in standby.text

        leader.kill()
        plane.kubectl("delete", "svc/nano", "-n", namespace)

        plane.wait_for(lambda: plane.get("svc", "nano", namespace), "the standby to take over", timeout=60)
        assert "lease_taken" in standby.text


def test_a_restart_of_the_api_server_is_survived(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    where = ["--namespace", namespace]
    with ExitStack() as stack:
        log = tmp_path / "operator.log"
        operator = stack.enter_context(running_operator(plane.kubeconfig, log, where, **DEFAULT_LEASE))
        plane.apply(deployment("before"), namespace)
        planned(plane, namespace, "before")

        with plane.api_server_down():
            time.sleep(3.0)
        plane.wait_for(lambda: plane.api.answers("/readyz"), "the API server")
        if (code := operator.process.poll()) is not None:
            # On a busy machine the restart may take longer than the lease: then a kubelet starts it again.
            assert code == 1
            log = tmp_path / "again.log"
            operator = stack.enter_context(running_operator(plane.kubeconfig, log, where, **DEFAULT_LEASE))
        plane.apply(deployment("after"), namespace)

        planned(plane, namespace, "after")
        plane.kubectl("delete", "svc/before", "-n", namespace)
        plane.wait_for(lambda: plane.get("svc", "before", namespace), "the watch to work again", timeout=90)
        assert operator.process.poll() is None
        assert operator.get("/healthz") == "ok"


def test_an_outage_that_outlasts_the_lease_ends_the_operator_and_the_next_one_goes_on(
    plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    where = ["--namespace", namespace]
    with running_operator(plane.kubeconfig, tmp_path / "first.log", where, **SHORT_LEASE) as operator:
        plane.apply(deployment("nano"), namespace)
        planned(plane, namespace, "nano")
        with plane.api_server_down():
            # Somebody else might hold the lease by now: whoever cannot know does not go on.
            assert operator.process.wait(60) == 1

    plane.kubectl("delete", "svc/nano", "-n", namespace)
    with running_operator(plane.kubeconfig, tmp_path / "second.log", where):
        plane.wait_for(lambda: plane.get("svc", "nano", namespace), "the next operator to go on", timeout=90)


def test_many_objects_at_once_are_all_served(plane: ControlPlane, namespace: str, tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(6)]
    with running_operator(plane.kubeconfig, tmp_path / "operator.log", ["--namespace", namespace]):
        plane.apply(
            [deployment(name, mode="Plan" if index % 3 else "Active") for index, name in enumerate(names)],
            namespace,
        )

        planned(plane, namespace, *names)
        plane.wait_for(
            lambda: count(plane, namespace) == 2 * CHILDREN, "the active ones' children", timeout=60
        )
