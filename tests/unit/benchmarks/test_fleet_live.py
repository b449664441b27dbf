"""What the comparison of simulated and live fleets computes: the fit, the trace, the figures."""

import pytest
from benchmarks.fleet_live import (
    BLOCK,
    LENGTHS,
    WIDE,
    Calibration,
    differences,
    figures,
    numbers,
    of_live,
    simulated,
    tokens_of,
    trace_of,
)

from mamba_cli.bench.samples import Sample


def sample(ttft: float, tpot: float, outputs: int = 11) -> Sample:
    return Sample(
        sent=0.0, end=ttft + tpot * (outputs - 1), ttft=ttft, prompt_tokens=100, output_tokens=outputs
    )


def calibration(
    speed: float = 5000.0, step: float = 0.004, sequence: float = 0.0003, overhead: float = 0.01
) -> Calibration:
    alone = {n: [sample(overhead + step + n / speed, step + sequence)] * 3 for n in LENGTHS}
    return Calibration(alone, [sample(0.1, step + WIDE * sequence)] * WIDE)


def test_the_fit_finds_the_costs_that_the_samples_were_made_of() -> None:
    fit = calibration().fit(100)
    assert fit.profile.prefill_tokens_per_second == pytest.approx(5000)
    assert fit.profile.step_seconds == pytest.approx(0.004)
    assert fit.profile.sequence_seconds == pytest.approx(0.0003)
    assert fit.overhead == pytest.approx(0.01)


def test_one_slow_moment_does_not_move_the_fit() -> None:
    disturbed = calibration()
    disturbed.alone[LENGTHS[0]] = [*disturbed.alone[LENGTHS[0]], sample(5.0, 1.0)]
    assert numbers(disturbed.fit(100)) == numbers(calibration().fit(100))


def test_an_idle_simulated_fleet_answers_after_what_was_fitted() -> None:
    quiet = trace_of(120, 0.1, 0)
    found = simulated(quiet, calibration().fit(500), 4, 0)
    most = max(a.input_tokens for a in quiet.workload.arrivals) / 5000
    assert 0.014 <= found["ttft_p50"] <= 0.014 + most
    assert found["ttft_p95"] <= 0.014 + most + 0.01


def test_equal_blocks_have_equal_tokens_and_the_trace_is_the_same_each_time() -> None:
    asked = trace_of(60, 4.0, 1)
    assert asked == trace_of(60, 4.0, 1)
    for arrival in asked.workload.arrivals:
        prompt = tokens_of(arrival)
        assert len(prompt) == arrival.input_tokens <= BLOCK * len(arrival.block_ids)
    one, other = (
        next(a for a in asked.workload.arrivals[start:] if a.block_ids[0] == 0) for start in (0, 50)
    )
    assert tokens_of(one)[:BLOCK] == tokens_of(other)[:BLOCK]


def test_failed_requests_are_in_no_figure() -> None:
    well = Sample(sent=0.0, end=2.0, ttft=1.0, prompt_tokens=10, output_tokens=4, cached_tokens=5)
    failed = Sample(sent=0.0, end=90.0, error="timeout")
    assert of_live([well, failed]) == of_live([well])
    assert of_live([well])["output_tokens_per_second"] == 2.0


def test_differences_are_relative_to_the_live_figure() -> None:
    live, model = figures([1.0], 10, 5, 10, 1.0), figures([1.1], 10, 4, 10, 1.0)
    assert differences(live, model) == {
        "ttft_p50": 0.1,
        "ttft_p95": 0.1,
        "token_hit_rate": -0.2,
        "output_tokens_per_second": 0.0,
    }
