"""Metrics of requests: every alias has the values of our own series."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from mamba_server.api.metrics.request_metrics import RequestMetrics

PAIRS = {
    "mambaserve_prompt_tokens_total": ("vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total"),
    "mambaserve_generated_tokens_total": ("vllm:generation_tokens_total",),
    "mambaserve_cached_tokens_total": ("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"),
    "mambaserve_time_to_first_token_seconds_sum": ("vllm:time_to_first_token_seconds_sum",),
    "mambaserve_inter_token_latency_seconds_count": ("vllm:inter_token_latency_seconds_count",),
    "mambaserve_time_per_output_token_seconds_sum": ("vllm:request_time_per_output_token_seconds_sum",),
    "mambaserve_request_duration_seconds_sum": ("vllm:e2e_request_latency_seconds_sum",),
    "mambaserve_request_queue_seconds_sum": ("vllm:request_queue_time_seconds_sum",),
    "mambaserve_request_prefill_seconds_sum": ("vllm:request_prefill_time_seconds_sum",),
    "mambaserve_request_decode_seconds_sum": ("vllm:request_decode_time_seconds_sum",),
    "mambaserve_request_max_generated_tokens_sum": ("vllm:request_max_num_generation_tokens_sum",),
    "mambaserve_request_prompt_tokens_count": ("vllm:request_prompt_tokens_count",),
    "mambaserve_request_generated_tokens_sum": ("vllm:request_generation_tokens_sum",),
}
REASONS = ("stop", "length", "abort", "error")

calls = st.one_of(
    st.tuples(st.just("submitted"), st.integers(0, 10**6)),
    st.tuples(st.just("generated"), st.integers(0, 10**4)),
    st.tuples(st.just("cached"), st.integers(0, 10**6)),
    st.tuples(st.just("first_token"), st.floats(0, 1000)),
    st.tuples(st.just("prompt_done"), st.floats(0, 10), st.floats(0, 10)),
    st.tuples(st.just("request_done"), st.integers(0, 10**6)),
    st.tuples(st.just("next_tokens"), st.floats(0, 10), st.integers(0, 9)),
    st.tuples(st.just("finished"), st.sampled_from(REASONS), st.floats(0, 1000)),
)


class Shown:
    """The samples of a registry at one moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._values = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in registry.collect()
            for sample in family.samples
        }

    def __getitem__(self, name: str) -> float:
        return self.value(name)

    def value(self, name: str, **labels: str) -> float:
        label = "model_name" if name.startswith("vllm:") else "model"
        return self._values[name, frozenset({label: "m", **labels}.items())]


@settings(deadline=None, max_examples=40)
@given(st.lists(calls, max_size=20))
def test_aliases_never_differ_from_what_they_stand_for(happened: list[tuple[Any, ...]]) -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, "m")
    for name, *arguments in happened:
        getattr(metrics, name)(*arguments)
    shown = Shown(registry)
    for ours, aliases in PAIRS.items():
        assert [shown[alias] for alias in aliases] == [shown[ours]] * len(aliases)
    for reason in REASONS:
        counted = sum(1 for name, *given in happened if name == "finished" and given[0] == reason)
        assert shown.value("mambaserve_requests_finished_total", reason=reason) == counted
        assert shown.value("vllm:request_success_total", finished_reason=reason) == counted


def test_every_reason_is_there_before_the_first_request_so_that_rates_begin_at_zero() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry, "m")
    shown = Shown(registry)
    assert [shown.value("mambaserve_requests_finished_total", reason=one) for one in REASONS] == [0] * 4


def test_a_sequence_that_was_cut_has_a_duration_and_no_length() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, "m")
    metrics.finished("abort", 3.0)
    metrics.finished("length", 1.0, per_token=0.5, tokens=3)
    assert Shown(registry)["mambaserve_request_duration_seconds_count"] == 2
    assert Shown(registry)["mambaserve_request_generated_tokens_count"] == 1
    assert Shown(registry)["mambaserve_time_per_output_token_seconds_count"] == 1


def test_tokens_that_came_together_share_their_time() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry, "m").next_tokens(0.05, 4)
    assert Shown(registry)["mambaserve_inter_token_latency_seconds_count"] == 4
    assert Shown(registry)["mambaserve_inter_token_latency_seconds_sum"] == pytest.approx(0.2)
