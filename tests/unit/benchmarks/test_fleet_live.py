"""Computations of the comparison of simulated and live fleets: the fit, the trace, the figures."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from benchmarks.fleet.calibration import WIDE, Calibration, non_negative
from benchmarks.fleet_live import (
    BLOCK,
    MORE,
    NEW,
    differences,
    figures,
    of_live,
    simulated,
    tokens_of,
    trace_of,
    undisturbed,
)
from benchmarks.other_load import OtherLoad, cpu_seconds, machine_seconds, tree

from mamba_cli.bench.samples import Sample
from mamba_cli.fleet.workload import RequestStream

TRANSIT, TOKEN, RESUME, SPEED, STEP, SEQUENCE = 0.006, 3e-6, 0.0015, 40_000.0, 0.0012, 0.00002


def sample(ttft: float, tpot: float, prompt: int = 100, cached: int = 0, outputs: int = 11) -> Sample:
    return Sample(
        sent=0.0, end=ttft + tpot * (outputs - 1), ttft=ttft, prompt_tokens=prompt, cached_tokens=cached,
        output_tokens=outputs,
    )  # fmt: skip


def first(prompt: int, cached: int) -> float:
    return TRANSIT + prompt * TOKEN + (cached > 0) * RESUME + STEP + (prompt - cached) / SPEED


def calibration(wobble: float = 0.0, cores: float = 2.0, used: float = 1.0) -> Calibration:
    cells = [(new, 0) for new in NEW] + [(new + more, new - new % 16) for new in NEW for more in MORE]
    alone = [
        sample(first(*cell) + off, STEP + SEQUENCE, *cell) for cell in cells for off in (-wobble, 0.0, wobble)
    ]
    return Calibration(alone, [sample(0.1, STEP + WIDE * SEQUENCE)] * WIDE, cores, used)


def test_the_fit_finds_the_costs_that_the_samples_were_made_of() -> None:
    fit = calibration().fit(100)
    own, around = fit.profile, fit.machine
    assert own.prefill_tokens_per_second == pytest.approx(SPEED, rel=1e-3)
    assert (own.step_seconds, own.sequence_seconds) == pytest.approx((STEP, SEQUENCE))
    assert own.resume_seconds == pytest.approx(RESUME, rel=1e-3)
    assert own.attention_ratio == pytest.approx(0.0, abs=1e-6)
    assert (around.transit_seconds, around.transit_token_seconds) == pytest.approx((TRANSIT, TOKEN), rel=1e-3)
    assert max(map(abs, around.jitter)) < 1e-6


def test_what_requests_alike_differ_by_is_jitter_and_moves_no_cost() -> None:
    fit = calibration(wobble=0.002).fit(100)
    assert fit.machine.transit_seconds == pytest.approx(TRANSIT, rel=1e-3)
    assert sorted({round(each, 6) for each in fit.machine.jitter}) == [-0.002, 0.0, 0.002]


def test_one_slow_moment_does_not_move_the_costs() -> None:
    disturbed = calibration()
    disturbed.alone.append(sample(5.0, 1.0, NEW[0]))
    assert disturbed.fit(100).profile == calibration().fit(100).profile


def test_no_cost_is_below_zero() -> None:
    parts = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert non_negative(parts, np.array([2.0, 3.0, 4.0])) == pytest.approx([1.0, 1.0])
    falling = non_negative(parts, np.array([4.0, 3.0, 2.0]))
    assert falling == pytest.approx([3.0, 0.0])


def test_an_idle_simulated_fleet_answers_after_what_was_fitted() -> None:
    quiet = trace_of(120, 0.1, 0)
    found = simulated(quiet, calibration().fit(500), 4, 0)
    lengths = sorted(a.input_tokens for a in quiet.workload.arrivals)
    assert first(48, 0) <= found["ttft_p50"] <= first(lengths[len(lengths) // 2], 0)
    assert found["ttft_p95"] <= first(lengths[-1], 0) + RESUME


def test_fewer_cores_are_slower_only_where_requests_meet() -> None:
    busy, quiet = trace_of(12, 60.0, 0), trace_of(60, 0.1, 0)

    def p95(cores: float, asked: RequestStream) -> float:
        return simulated(asked, calibration(cores=cores).fit(500), 4, 0)["ttft_p95"]

    assert p95(1.0, busy) > 1.2 * p95(8.0, busy)
    assert p95(1.0, quiet) == p95(8.0, quiet)


def test_the_time_of_processes_counts_those_that_were_started() -> None:
    code = "import time, sys\nwhile time.process_time() < 0.2: pass\nprint(flush=True); sys.stdin.read()"
    before = machine_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in tree()
        assert 0.18 <= cpu_seconds([child.pid]) <= 10
        assert machine_seconds() - before >= 0.1
        assert child.stdin is not None
        child.stdin.close()
    assert cpu_seconds([child.pid]) == 0.0


def test_what_others_took_while_a_request_waited_makes_it_a_disturbed_one() -> None:
    others = OtherLoad([10.0, 10.25, 10.5, 10.75], [0.0, 0.0, 0.9, 0.1])
    assert others.peak(10.1, 10.2) == 0.0
    assert others.peak(10.1, 10.3) == others.peak(10.3, 10.4) == others.peak(10.4, 10.7) == 0.9
    assert others.peak(10.6, 10.7) == 0.1
    # Nobody looked then.
    assert others.peak(9.0, 9.5) == others.peak(10.7, 11.0) == float("inf")
    quiet, loud = sample(0.05, 0.0), msgspec.structs.replace(sample(0.05, 0.0), sent=0.2)
    assert undisturbed([quiet, loud], others, start=10.1) == [quiet]
    assert undisturbed([loud, loud, loud, quiet], others, start=10.1) == [loud, loud, loud, quiet]


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
