"""The engine's numbers on /metrics: parsing, bounds, what is not passed on."""

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from mamba_server.api.metrics.engine_metrics import MAX_SERIES, EngineMetrics, parse_key
from mamba_server.wire import EngineStats, Ready


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> EngineMetrics:
    return EngineMetrics(registry, "m")


def stats(counters: dict[str, float] | None = None, gauges: dict[str, float] | None = None) -> EngineStats:
    return EngineStats(counters or {}, gauges or {}, [], [])


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        ("steps", ("steps", ())),
        ("steps_total", ("steps", ())),
        ("slabs{owner=free}", ("slabs", (("owner", "free"),))),
        ('slabs{owner="free"}', ("slabs", (("owner", "free"),))),
        ("x{reason=b,cause=a}", ("x", (("cause", "a"), ("reason", "b")))),
        ("x{}", ("x", ())),
        ("x{request_id=7}", None),
        ("x{owner}", None),
        ("Bad-Name", None),
        ("x{owner=a", None),
        ("", None),
    ],
)
def test_keys_are_names_and_known_labels(key: str, parsed: object) -> None:
    assert parse_key(key) == parsed


def test_before_the_engine_says_anything_the_basic_series_are_there(
    registry: CollectorRegistry, metrics: EngineMetrics
) -> None:
    text = generate_latest(registry).decode()
    for line in (
        'mambaserve_requests_running{model="m"} 0.0',
        'vllm:num_requests_waiting{model_name="m"} 0.0',
        'vllm:kv_cache_usage_perc{model_name="m"} 0.0',
        'mambaserve_engine_up{model="m"} 0.0',
    ):
        assert line in text


def test_the_number_of_series_of_one_name_is_bounded(
    registry: CollectorRegistry, metrics: EngineMetrics
) -> None:
    metrics.on_stats(stats(gauges={f"pages{{owner=o{number}}}": 1.0 for number in range(500)}))
    text = generate_latest(registry).decode()
    assert text.count("mambaserve_pages{") == MAX_SERIES


def test_request_counters_of_the_engine_are_not_a_second_series(
    registry: CollectorRegistry, metrics: EngineMetrics
) -> None:
    metrics.on_stats(stats(counters={"prompt_tokens_total": 5.0, "steps_total": 1.0}))
    text = generate_latest(registry).decode()
    assert "mambaserve_prompt_tokens" not in text
    assert "mambaserve_steps_total" in text


def test_the_newest_numbers_replace_the_older(registry: CollectorRegistry, metrics: EngineMetrics) -> None:
    metrics.on_stats(stats(gauges={"requests_running": 3.0}))
    metrics.on_stats(stats(gauges={"requests_running": 1.0}))
    assert 'vllm:num_requests_running{model_name="m"} 1.0' in generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("gauges", "expected"),
    [
        ({}, 0.0),
        ({"arena_usage": 0.4, "state_usage": 0.9}, 0.4),
        ({"state_usage": 0.2, "kv_usage": 0.7}, 0.7),
        ({"state_usage": 0.8, "kv_usage": 0.7}, 0.8),
    ],
)
def test_cache_usage_is_what_binds(metrics: EngineMetrics, gauges: dict[str, float], expected: float) -> None:
    metrics.on_stats(stats(gauges=gauges))
    assert metrics.cache_usage() == expected


def test_steps_and_batches_become_histograms(registry: CollectorRegistry, metrics: EngineMetrics) -> None:
    metrics.on_stats(EngineStats({}, {}, [(0.001, 0.02, 0.003), (0.001, 0.04, 0.003)], [4, 8]))
    text = generate_latest(registry).decode()
    assert 'mambaserve_step_seconds_count{model="m",part="run"} 2.0' in text
    assert 'mambaserve_step_seconds_sum{model="m",part="run"} 0.06' in text
    assert 'mambaserve_batch_size_sum{model="m"} 12.0' in text


def test_what_computes_is_told(registry: CollectorRegistry, metrics: EngineMetrics) -> None:
    metrics.on_ready(Ready(10, 10, (), {"kernels": "avx2"}))
    assert 'mambaserve_kernels_info{kernels="avx2",model="m"} 1.0' in generate_latest(registry).decode()


def test_the_strategy_in_force_is_told_and_follows_a_change(
    registry: CollectorRegistry, metrics: EngineMetrics
) -> None:
    metrics.on_ready(Ready(10, 10, (), {"strategy": "ExtraBuffer", "pageSize": 16, "pages": 9}))
    assert 'strategy_info{model="m",strategy="ExtraBuffer"} 1.0' in generate_latest(registry).decode()
    metrics.on_strategy("NoBuffer")
    text = generate_latest(registry).decode()
    assert 'strategy_info{model="m",strategy="NoBuffer"} 1.0' in text
    assert 'block_size="16",model_name="m",num_gpu_blocks="9"' in text
