"""The chart's values: complete, commented, and refused when wrong. No helm needed."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from mamba_api import names
from parsed_yaml import load_yaml

CHART = Path(__file__).parents[3] / "charts/mambaserve"
VALUES = load_yaml((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    return over


def problems(over: dict[str, Any]) -> list[str]:
    errors = jsonschema_rs.Draft7Validator(SCHEMA).iter_errors(merged(VALUES, over))
    return ["/".join(map(str, error.instance_path)) for error in errors]


def test_the_defaults_are_valid() -> None:
    assert jsonschema_rs.meta.is_valid(SCHEMA)
    assert problems({}) == []


@pytest.mark.parametrize(
    ("over", "path"),
    [
        ({"bogus": 1}, ""),
        ({"operator": {"bogus": 2}}, "operator"),
        ({"operator": {"replicas": -1}}, "operator/replicas"),
        ({"operator": {"logLevel": "loud"}}, "operator/logLevel"),
        ({"operator": {"command": []}}, "operator/command"),
        ({"operator": {"livenessPort": 0}}, "operator/livenessPort"),
        ({"operator": {"hostUsers": "no"}}, "operator/hostUsers"),
        ({"operator": {"podLabels": {"a": "b c"}}}, "operator/podLabels/a"),
        ({"operator": {"nodeSelector": {"a": "b/c"}}}, "operator/nodeSelector/a"),
        ({"operator": {"resources": {"limits": {"memory": "12GB"}}}}, "operator/resources/limits/memory"),
        ({"operator": {"resources": {"requests": {"cpu": -1}}}}, "operator/resources/requests/cpu"),
        ({"commonLabels": {"team": "a" * 64}}, "commonLabels/team"),
        ({"fullnameOverride": "My_Ops"}, "fullnameOverride"),
        ({"fullnameOverride": "1-ops"}, "fullnameOverride"),
        ({"nameOverride": "My_Ops"}, "nameOverride"),
        ({"watchNamespaces": ["Upper"]}, "watchNamespaces/0"),
        ({"watchNamespaces": ["a", "a"]}, "watchNamespaces"),
        ({"watchNamespaces": "a"}, "watchNamespaces"),
        ({"crds": {"keep": "yes"}}, "crds/keep"),
        ({"image": {"digest": "latest"}}, "image/digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "image/pullPolicy"),
        ({"test": {"python": []}}, "test/python"),
        ({"resourceProfiles": {"a": {"gpu": 1}}}, "resourceProfiles/a"),
        ({"resourceProfiles": {"a": {"gpus": 2}}}, "resourceProfiles/a/gpus"),
        ({"resourceProfiles": {"a": {"memory": "12GB"}}}, "resourceProfiles/a/memory"),
        ({"resourceProfiles": {"A": {}}}, "resourceProfiles"),
        ({"redis": {"bogus": 1}}, "redis"),
        ({"redis": {"cpu": "half"}}, "redis/cpu"),
        ({"redis": {"maxMemory": 8}}, "redis/maxMemory"),
        ({"redis": {"maxMemory": "256mb"}}, "redis/maxMemory"),
        ({"externalMetrics": {"bogus": 1}}, "externalMetrics"),
        ({"externalMetrics": {"port": 443}}, "externalMetrics/port"),
        ({"redisImage": {"tag": ""}}, "redisImage/tag"),
        ({"monitoring": {"runbooks": ""}}, "monitoring/runbooks"),
        ({"networkPolicy": {"enabled": "yes"}}, "networkPolicy/enabled"),
        ({"networkPolicy": {"apiServer": {"ports": []}}}, "networkPolicy/apiServer/ports"),
        ({"networkPolicy": {"apiServer": {"cidrs": ["10.0.0.1"]}}}, "networkPolicy/apiServer/cidrs/0"),
        ({"monitoring": {"scrapers": [{"pod": {}}]}}, "monitoring/scrapers/0"),
        ({"monitoring": {"dashboardLabels": {"a": 1}}}, "monitoring/dashboardLabels/a"),
    ],
)
def test_a_wrong_value_is_refused(over: dict[str, Any], path: str) -> None:
    assert problems(over) == [path]


@pytest.mark.parametrize("amount", ["250m", 1, 0.5, "1.5", "1e3", "2Gi"])
def test_what_kubernetes_reads_as_an_amount_is_taken(amount: str | float) -> None:
    over = {"resources": {"requests": {"cpu": amount, "memory": amount}, "limits": {"cpu": amount}}}
    assert problems({"operator": over, "redis": {"cpu": amount}}) == []


def test_every_key_of_the_values_is_in_the_schema_and_the_other_way_round() -> None:
    def keys(schema: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for name, child in schema.get("properties", {}).items():
            found |= {prefix + name} | keys(child, f"{prefix}{name}.")
        return found

    def given(values: dict[str, Any], prefix: str = "") -> set[str]:
        found = set()
        for name, value in values.items():
            found.add(prefix + name)
            if isinstance(value, dict) and prefix + name in SECTIONS:
                found |= given(value, f"{prefix}{name}.")
        return found

    free = {"global", "operator.resources.requests", "operator.resources.limits", "operator.resources.claims"}
    assert keys(SCHEMA) - free - given(VALUES) == set()
    assert given(VALUES) - keys(SCHEMA) == set()


SECTIONS = {
    "crds", "image", "engineImage", "redisImage", "serviceAccount", "rbac", "operator",
    "externalMetrics", "redis", "monitoring", "networkPolicy", "networkPolicy.apiServer", "test",
}  # fmt: skip


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict) and path + name in SECTIONS:
            yield from leaves(value, f"{path}{name}.")
        else:
            yield path + name


@pytest.mark.parametrize("value", list(leaves(VALUES)))
def test_a_value_is_read_by_a_template(value: str) -> None:
    section, _, name = value.rpartition(".")
    read = rf"\.Values\.{re.escape(value)}\b"
    if section:
        # Templates bind a section to a variable before they read several values of it.
        read += rf"|\$(?:\w+)\.{name}\b|\.{name}\b"

    assert any(re.search(read, template.read_text()) for template in (CHART / "templates").rglob("*.*"))


def test_the_defaults_agree_with_the_names_that_all_processes_share() -> None:
    chart = load_yaml((CHART / "Chart.yaml").read_text())
    assert f"{VALUES['image']['repository']}:{chart['appVersion']}" == names.CONTROL_PLANE_IMAGE
    assert f"{VALUES['engineImage']['repository']}:{chart['appVersion']}" == names.IMAGE
    assert VALUES["operator"]["livenessPort"] == names.OPERATOR_LIVENESS_PORT


@pytest.mark.parametrize("component", ["operator", "redis"])
def test_pods_are_confined_by_default(component: str) -> None:
    values = VALUES[component]
    assert values["podSecurityContext"]["runAsNonRoot"] is True
    assert values["podSecurityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert values["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_check_of_helm_test_needs_the_standard_library_alone() -> None:
    tree = ast.parse((CHART / "files/check.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"os", "ssl", "urllib.request"}
