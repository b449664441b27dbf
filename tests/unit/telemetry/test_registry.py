"""The registry helpers: exposition, sensible buckets."""

import pytest

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
