"""Queries of example 09 on a real Prometheus that scrapes the operator's series: each has one result."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server

from eventually import wait_until
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.scaling_metrics import ScalingMetrics
from mamba_operator.objects.manifest import Key
from parsed_yaml import load_all_yaml, load_yaml
from prometheus_server import Prometheus, prometheus
from scaled_fleet import seen

FOLDER = Path(__file__).parents[2] / "examples/09-external-autoscaler"
ENGINES = {("default", "hpa"): 2, ("default", "other"): 3, ("elsewhere", "hpa"): 4}
"""Running engines by (namespace, name); as many are wanted."""


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield a Prometheus that has scraped an operator in a namespace of its own."""
    registry = CollectorRegistry()
    metrics = ScalingMetrics(registry)
    for key, engines in ENGINES.items():
        look = seen(engines, 1.0)
        metrics.show(Key(*key), look, decide(look, AutoscalerConfig(max_replicas=8), AutoscalerMemory()))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        jobs = {"mambaserve-system": f"http://127.0.0.1:{server.server_port}"}
        with prometheus(tmp_path_factory.mktemp("prometheus"), jobs, {"groups": []}, "200ms") as running:
            wait_until(lambda: running.targets_up() == 1)
            yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def document(name: str) -> dict[str, Any]:
    found: dict[str, Any] = load_yaml((FOLDER / "autoscalers" / name).read_text())
    return found


@pytest.mark.slow
def test_the_query_of_keda_is_one_number_of_this_deployment(scraped: Prometheus) -> None:
    (trigger,) = document("keda-prometheus.yaml")["spec"]["triggers"]

    (sample,) = scraped.query(trigger["metadata"]["query"])

    assert float(sample["value"][1]) == ENGINES["default", "hpa"]


@pytest.mark.slow
def test_the_rule_of_the_adapter_finds_each_metric_and_keeps_the_labels_it_is_selected_by(
    scraped: Prometheus,
) -> None:
    (rule,) = document("prometheus-adapter.yaml")["rules"]["external"]
    found = {sample["metric"]["__name__"] for sample in scraped.query(rule["seriesQuery"])}
    hpa = list(load_all_yaml((FOLDER / "mamba.yaml").read_text()))[1]
    metric = hpa["spec"]["metrics"][0]["external"]["metric"]
    (label,) = rule["resources"]["overrides"]
    selected = {label: "default", **metric["selector"]["matchLabels"]}
    matchers = ",".join(f'{name}="{value}"' for name, value in selected.items())
    query = (
        rule["metricsQuery"].replace("<<.Series>>", metric["name"]).replace("<<.LabelMatchers>>", matchers)
    )

    (sample,) = scraped.query(query)

    assert len(found) == 4
    assert sample["metric"] == selected
    assert float(sample["value"][1]) == ENGINES["default", "hpa"]
