"""Observations that are gathered read as those of a plain histogram, whenever somebody looks."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from mamba_telemetry.gathering_metrics import MAX_PENDING, GatheringHistogram

BOUNDS = (0.5, 1, 2, 4)
# Sums of eighths are exact in whatever order.
amounts = st.integers(-8, 64).map(lambda eighths: eighths / 8)
steps = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from("ab"), amounts)), max_size=60)


def both() -> list[tuple[CollectorRegistry, Histogram]]:
    made: list[tuple[CollectorRegistry, Histogram]] = []
    for kind in (Histogram, GatheringHistogram):
        registry = CollectorRegistry()
        made.append((registry, kind("seconds", "Of it.", ["model"], buckets=BOUNDS, registry=registry)))
    return made


def told(registry: CollectorRegistry) -> list[str]:
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if "_created" not in line]


@settings(max_examples=60)
@given(steps)
def test_it_tells_what_a_plain_histogram_tells(taken: list[tuple[str, float] | None]) -> None:
    (plain_registry, plain), (registry, gathering) = both()
    for step in taken:
        if step is None:
            assert told(registry) == told(plain_registry)
        else:
            for histogram in (plain, gathering):
                histogram.labels(step[0]).observe(step[1])
    assert told(registry) == told(plain_registry)


def test_what_is_beyond_every_bound_counts_and_much_is_counted_unread() -> None:
    (plain_registry, plain), (registry, gathering) = both()
    for histogram in (plain, gathering):
        child = histogram.labels("a")
        for _ in range(3 * MAX_PENDING + 1):
            child.observe(math.inf)
    assert len(gathering.labels("a")._gathered) == 1  # type: ignore[attr-defined]
    assert told(registry) == told(plain_registry)


def test_an_exemplar_stands_at_its_bucket() -> None:
    _, (registry, gathering) = both()
    gathering.labels("a").observe(0.25)
    gathering.labels("a").observe(1.5, {"trace_id": "t"})
    lines = generate_openmetrics(registry).decode().splitlines()
    assert [line for line in lines if "trace_id" in line] == [
        line for line in lines if line.startswith('seconds_bucket{le="2.0",model="a"} 2.0 #')
    ]
    assert any("trace_id" in line for line in lines)
