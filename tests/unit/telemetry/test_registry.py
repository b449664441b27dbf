"""The registry helpers: exposition, sensible buckets."""

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from mamba_telemetry import registry


def test_a_registry_of_its_own_exposes_process_metrics() -> None:
    body, kind = registry.expose(registry.make_registry())
    assert b"process_cpu_seconds_total" in body
    assert kind.startswith("text/plain")


def test_two_registries_do_not_share_anything() -> None:
    assert registry.make_registry() is not registry.make_registry(process_metrics=False)


@pytest.mark.parametrize("name", [name for name in dir(registry) if name.endswith("_BUCKETS")])
def test_buckets_rise(name: str) -> None:
    buckets = getattr(registry, name)
    assert list(buckets) == sorted(set(buckets))
    assert buckets[0] > 0


def observed() -> CollectorRegistry:
    made = registry.make_registry()
    seconds = Histogram("mambaserve_x_seconds", "X.", registry=made, buckets=(1, 2))
    seconds.observe(1.5, {"trace_id": "a" * 32})
    return made


def test_who_asks_for_openmetrics_sees_the_trace_behind_a_measurement() -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    body, kind = registry.expose(observed(), accept)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    exemplars = {
        sample.labels["le"]: sample.exemplar.labels
        for sample in families["mambaserve_x_seconds"].samples
        if sample.exemplar
    }
    assert exemplars == {"2.0": {"trace_id": "a" * 32}}


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "text/plain",
        "application/json",
        "application/openmetrics-text;version=x",
        "a;b=\r\n;;,,=",
        "é",
    ],
)
def test_who_asks_for_anything_else_gets_something_that_can_be_read(accept: str) -> None:
    body, kind = registry.expose(observed(), accept)
    assert b"mambaserve_x_seconds_bucket" in body
    assert kind.startswith(("text/plain", "application/openmetrics-text"))
    assert kind.isprintable()
