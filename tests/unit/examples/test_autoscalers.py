"""Example 09 and its page: every metric that other autoscalers are told of exists, with these labels."""

import re
from pathlib import Path
from typing import Any

import pytest

from mamba_api.v1alpha1.documents import load_documents
from mamba_operator.external_metrics.documents import NAMES
from observability.series import UnknownSeries, series
from parsed_yaml import load_all_yaml, load_yaml

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/09-external-autoscaler"
PAGES = (FOLDER / "README.md", ROOT / "docs/howto/external-autoscaler.md")
OTHERS = sorted((FOLDER / "autoscalers").glob("*.yaml"))
FILES = [FOLDER / "mamba.yaml", *OTHERS]
KEDA = [file for file in OTHERS if file.name.startswith("keda")]
(DEPLOYMENT,) = load_documents((FOLDER / "mamba.yaml").read_text(), "09")
HPA: dict[str, Any] = list(load_all_yaml((FOLDER / "mamba.yaml").read_text()))[1]
NAMED = re.compile(r"mambaserve_(operator_scaling_[a-z_]+)(?:\{([^}]*)\})?")
EXPORTED = "exported_namespace"
"""Label that a scrape which sets `namespace` gives to the series' own one."""


@pytest.mark.parametrize("file", [*FILES, *PAGES], ids=lambda file: file.name)
def test_every_series_that_is_named_is_exposed_with_the_labels_it_is_asked_by(file: Path) -> None:
    found = NAMED.findall(file.read_text())
    if file.name == "prometheus-adapter.yaml":
        (names,) = re.findall(r"mambaserve_operator_scaling_\(([a-z_|]+)\)", file.read_text())
        found = [(f"operator_scaling_{name}", f'name="",{EXPORTED}=""') for name in names.split("|")]
    assert found
    for name, matchers in found:
        one = series(name)
        for label in re.findall(r"(\w+)=", matchers):
            one.check("namespace" if label == EXPORTED else label)


def test_a_name_that_is_exposed_by_no_process_is_noticed() -> None:
    with pytest.raises(UnknownSeries):
        series("operator_scaling_bogus_engines")


def test_what_the_api_serves_is_exposed_too_and_told_on_the_page() -> None:
    told = {f"mambaserve_{name}" for name, _ in NAMED.findall(PAGES[1].read_text())}
    assert told == set(NAMES)
    for name in NAMES:
        assert series(name.removeprefix("mambaserve_")).kind == "gauge"


def test_the_autoscaler_asks_for_a_metric_of_the_deployment_that_the_api_serves() -> None:
    (metric,) = HPA["spec"]["metrics"]
    asked = metric["external"]["metric"]
    assert asked["name"] in NAMES
    assert asked["selector"] == {"matchLabels": {"name": DEPLOYMENT.name}}


@pytest.mark.parametrize(
    ("target", "bounds"),
    [
        pytest.param(HPA["spec"]["scaleTargetRef"], (HPA["spec"]["minReplicas"], HPA["spec"]["maxReplicas"])),
        *(
            pytest.param(
                one["scaleTargetRef"], (one["minReplicaCount"], one["maxReplicaCount"]), id=file.name
            )
            for file in KEDA
            for one in [load_yaml(file.read_text())["spec"]]
        ),
    ],
)
def test_each_writes_the_scale_of_the_deployment_within_its_bounds(
    target: dict[str, str], bounds: tuple[int, int]
) -> None:
    own = DEPLOYMENT.manifest()
    assert target == {"apiVersion": own["apiVersion"], "kind": own["kind"], "name": DEPLOYMENT.name}
    scaling = DEPLOYMENT.spec.scaling
    assert scaling.mode == "External"
    assert scaling.min_replicas is not None
    assert scaling.max_replicas is not None
    assert scaling.min_replicas <= bounds[0] <= bounds[1] <= scaling.max_replicas


def test_keda_is_led_to_the_service_and_port_that_the_chart_makes() -> None:
    (url,) = [
        trigger["metadata"]["url"]
        for file in KEDA
        for trigger in load_yaml(file.read_text())["spec"]["triggers"]
        if trigger["type"] == "metrics-api"
    ]
    values = load_yaml((ROOT / "charts/mambaserve/values.yaml").read_text())
    # A release called mambaserve, as everywhere in the documentation.
    assert url == (
        f"http://mambaserve-operator.mambaserve-system.svc:{values['operator']['livenessPort']}/metrics"
    )
