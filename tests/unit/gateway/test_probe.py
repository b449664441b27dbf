"""Interpretation of engines' answers by the prober."""

import pytest

from mamba_gateway.endpoints.engine_speed import EngineSpeed
from mamba_gateway.endpoints.probe import (
    KV_USAGE,
    RUNNING,
    WAITING,
    first_value,
    read_gauges,
    reason_of,
    speed_of,
)

TEXT = """
# HELP mambaserve_requests_running Running.
# TYPE mambaserve_requests_running gauge
mambaserve_requests_running{model="a",strategy="x"} 3
mambaserve_requests_running{model="b {}"} 2.0
mambaserve_requests_waiting 7 1700000000000
vllm:num_requests_running{model_name="a"} 99
vllm:kv_cache_usage_perc{model_name="a"} 0.25
odd{label="x y"} NaN
broken
also broken{
"""


def test_label_sets_are_summed_and_timestamps_ignored() -> None:
    gauges = read_gauges(TEXT)
    assert gauges["mambaserve_requests_running"] == 5
    assert first_value(gauges, RUNNING) == 5
    assert first_value(gauges, WAITING) == 7
    assert first_value(gauges, KV_USAGE) == 0.25


def test_other_engines_names_are_understood_and_absence_is_zero() -> None:
    assert first_value(read_gauges('sglang:num_running_reqs{x="1"} 4'), RUNNING) == 4
    assert first_value({}, RUNNING) == 0


@pytest.mark.parametrize(
    ("body", "reason", "draining"),
    [
        (b'{"status": "loading"}', "loading", False),
        (b'{"status": "draining"}', "draining", True),
        (b'{"error": {"message": "the engine drains", "code": "draining"}}', "draining", True),
        (b'{"error": {"message": "Draining now", "code": null}}', "Draining now", True),
        (b"draining", "draining", True),
        (b"", "", False),
        (b"[1]", "[1]", False),
        (b'{"error": "odd"}', "", False),
        (b"\xff\xff", "\ufffd\ufffd", False),
        (b'{"reason": "\xff drain"}', '{"reason": "\ufffd drain"}', True),
        (b"[" * 60_000, "[" * 200, False),
        (b'{"error": {"message": "' + b"x" * 500 + b'"}}', "x" * 200, False),
        (b'{"reason": 5, "code": 0}', "5", False),
        (b"null", "None", False),
    ],
)
def test_the_reason_of_a_503_is_read_from_json_or_text(body, reason, draining) -> None:
    said, drains = reason_of(body)
    assert drains is draining
    assert said == reason or not reason


def test_gauges_that_are_no_numbers_are_left_out_of_the_sum() -> None:
    text = 'mambaserve_requests_running{model="a"} NaN\nmambaserve_requests_running{model="b"} 2\n'
    assert read_gauges(text + "mambaserve_requests_waiting +Inf\n") == {"mambaserve_requests_running": 2}


def test_a_name_of_ours_wins_over_that_of_another_engine_even_at_zero() -> None:
    gauges = read_gauges("vllm:num_requests_running 9\nmambaserve_requests_running 0\n")
    assert first_value(gauges, RUNNING) == 0


def test_an_engine_that_has_measured_nothing_or_says_nothing_has_no_speed() -> None:
    told = (
        'mambaserve_prefill_tokens_per_second{model="m"} 5000\n'
        'mambaserve_prefill_attention_ratio{model="m"} 1e-05\n'
        'mambaserve_decode_step_seconds{model="m"} 0.02\n'
    )
    assert speed_of(read_gauges(told)) == EngineSpeed(5000, 1e-5, 0.02)
    error = 'mambaserve_prefill_speed_error{model="m"} 0.25\n'
    assert speed_of(read_gauges(told + error)) == EngineSpeed(5000, 1e-5, 0.02, 0.25)
    assert speed_of(read_gauges(told.replace("5000", "0"))) is None
    assert speed_of(read_gauges("vllm:num_requests_running 3")) is None
