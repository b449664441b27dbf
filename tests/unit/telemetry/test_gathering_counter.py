"""Counters without a lock read as plain counters at any time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from mamba_telemetry.gathering_metrics import GatheringCounter

steps = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("ab"), st.integers(0, 9))), max_size=60)


def made(kind: type[Counter]) -> tuple[CollectorRegistry, Counter]:
    registry = CollectorRegistry()
    return registry, kind("things", "Of them.", ["model"], registry=registry)


def told(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


@settings(max_examples=60)
@given(steps)
def test_it_tells_what_a_plain_counter_tells(taken: list[tuple[str, int] | None]) -> None:
    (plain_registry, plain), (registry, gathering) = made(Counter), made(GatheringCounter)
    for step in taken:
        if step is None:
            assert told(registry) == told(plain_registry)
        else:
            for counter in (plain, gathering):
                counter.labels(step[0]).inc(step[1])
    assert told(registry) == told(plain_registry)


def test_nothing_is_taken_back_and_an_exemplar_stands_beside_its_count() -> None:
    registry, counter = made(GatheringCounter)
    counter.labels("a").inc()
    with pytest.raises(ValueError, match="incremented"):
        counter.labels("a").inc(-1)
    counter.labels("a").inc(1, {"trace_id": "t"})
    lines = generate_openmetrics(registry).decode().splitlines()
    assert any(line.startswith('things_total{model="a"} 2.0 # {trace_id="t"}') for line in lines)
