"""The chart's NetworkPolicy for the operator, as a network enforces it: who gets in, whom it asks."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mamba_api import names
from mamba_operator.render.context import PROMETHEUS
from parsed_yaml import load_all_yaml
from testcluster.control_plane import ControlPlane
from testcluster.kubectl import Command

pytestmark = pytest.mark.kube

CHART = Path(__file__).parents[2] / "charts/mambaserve"
ON = ("--set", "networkPolicy.enabled=true")
NAME = "kubernetes.io/metadata.name"
Where = dict[str, str] | None
"""Labels of the namespace; None = what asks or answers is no pod."""


@pytest.fixture(scope="module")
def helm(control_plane: ControlPlane) -> Command:
    return control_plane.helm


def rendered(helm: Command, *options: str) -> list[dict[str, Any]]:
    text = helm("template", "rel", str(CHART), "-n", "sys", *options)
    return [each for each in load_all_yaml(text) if each]


def policy_of(helm: Command, *options: str) -> dict[str, Any]:
    made = rendered(helm, *ON, *options)
    (found,) = [each for each in made if each["kind"] == "NetworkPolicy"]
    (operator,) = [each for each in made if each["kind"] == "Deployment"]
    labels = operator["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert found["spec"]["policyTypes"] == ["Ingress", "Egress"]
    spec: dict[str, Any] = found["spec"]
    return spec


def lets(rules: list[dict[str, Any]], side: str, port: str | int, pod: dict[str, str], where: Where) -> bool:
    """Return whether a rule lets a pod with these labels, in a namespace with those, through at this port."""
    return any(
        any(one["port"] == port for one in rule["ports"])
        and (side not in rule or any(_is(peer, pod, where) for peer in rule[side]))
        for rule in rules
    )


def _is(peer: dict[str, Any], pod: dict[str, str], where: Where) -> bool:
    if where is None or "ipBlock" in peer:
        return False
    at = peer.get("namespaceSelector", {"matchLabels": {NAME: "sys"}})
    return _selects(at, where) and _selects(peer["podSelector"], pod)


def _selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    in_all = (labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", ()))
    return selector.get("matchLabels", {}).items() <= labels.items() and all(in_all)


def comes_in(policy: dict[str, Any], port: str, pod: dict[str, str], where: Where) -> bool:
    return lets(policy["ingress"], "from", port, pod, where)


def goes_out(policy: dict[str, Any], port: int, pod: dict[str, str], where: Where) -> bool:
    return lets(policy["egress"], "to", port, pod, where)


def test_there_is_none_unless_it_is_asked_for(helm: Command) -> None:
    assert not [each for each in rendered(helm) if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("component", ["engine", "gateway", "loader"])
def test_the_operator_reaches_what_it_made_where_it_serves_and_nothing_else(
    helm: Command, component: Any
) -> None:
    everywhere, here = policy_of(helm), policy_of(helm, "--set", "watchNamespaces={a,b}")
    made = names.labels("nano", component)

    for port in (names.HTTP_PORT, names.ADMIN_PORT):
        assert goes_out(everywhere, port, made, {NAME: "any"})
        assert goes_out(here, port, made, {NAME: "b"})
        assert not goes_out(here, port, made, {NAME: "c"})
        assert not goes_out(everywhere, port, {"app": "other"}, {NAME: "any"})
    assert not goes_out(everywhere, 6379, made, {NAME: "any"})


def test_it_reaches_names_and_the_api_server_which_are_no_pods(helm: Command) -> None:
    policy = policy_of(helm)
    there = policy_of(
        helm, "--set", "networkPolicy.apiServer.cidrs={10.1.0.0/28,fd00::/64}",
        "--set", "networkPolicy.apiServer.ports={16443}",
    )  # fmt: skip

    for port in (53, 443, 6443):
        assert goes_out(policy, port, {}, None)
    [api] = [rule for rule in there["egress"] if rule["ports"][0]["port"] == 16443]
    assert [peer["ipBlock"]["cidr"] for peer in api["to"]] == ["10.1.0.0/28", "fd00::/64"]
    assert goes_out(there, 53, {}, None)
    assert not goes_out(there, 6443, {}, None)
    assert {one["protocol"] for rule in policy["egress"] for one in rule["ports"] if one["port"] == 53} == {
        "UDP", "TCP",
    }  # fmt: skip


def test_scrapers_and_the_chart_s_own_test_get_in_and_nobody_else(helm: Command) -> None:
    policy = policy_of(helm)
    (test,) = [each for each in rendered(helm) if each["kind"] == "Pod"]
    (prometheus,) = PROMETHEUS

    assert comes_in(policy, "health", prometheus.pods, {NAME: "monitoring"})
    assert comes_in(policy, "health", test["metadata"]["labels"], {NAME: "sys"})
    assert not comes_in(policy, "health", test["metadata"]["labels"], {NAME: "other"})
    assert not comes_in(policy, "health", names.labels("nano", "engine"), {NAME: "sys"})
    assert not comes_in(policy, "ext-metrics", prometheus.pods, {NAME: "monitoring"})


def test_scrapers_are_those_of_the_values(helm: Command) -> None:
    ours = policy_of(
        helm, "--set-json", 'monitoring.scrapers=[{"namespaces": {"team": "watch"}}]'
    )  # fmt: skip
    nobody = policy_of(helm, "--set-json", "monitoring.scrapers=[]", "--set", "test.enabled=false")

    assert comes_in(ours, "health", {"any": "pod"}, {"team": "watch"})
    assert not comes_in(ours, "health", {"any": "pod"}, {NAME: "watch"})
    assert nobody["ingress"] == []


def test_the_api_server_gets_in_to_the_external_metrics_it_aggregates(helm: Command) -> None:
    made = rendered(helm, *ON, "--set", "externalMetrics.enabled=true")
    policy = policy_of(helm, "--set", "externalMetrics.enabled=true")
    (operator,) = [each for each in made if each["kind"] == "Deployment"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]

    assert comes_in(policy, "ext-metrics", {}, None)
    assert not comes_in(policy, "health", {}, None)
    named = {one["port"] for rule in policy["ingress"] for one in rule["ports"]}
    assert named == {port["name"] for port in container["ports"]}


@pytest.mark.parametrize(
    "options",
    [
        (), ("--set-json", "monitoring.scrapers=[]", "--set", "test.enabled=false"),
        ("--set", "externalMetrics.enabled=true", "--set", "watchNamespaces={a}"),
        ("--set", "networkPolicy.apiServer.cidrs={10.1.0.0/28}"),
    ],
)  # fmt: skip
def test_the_api_server_takes_it(
    helm: Command, control_plane: ControlPlane, namespace: str, options: tuple[str, ...]
) -> None:
    made = {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "operator", "namespace": namespace}, "spec": policy_of(helm, *options),
    }  # fmt: skip
    control_plane.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(made))
