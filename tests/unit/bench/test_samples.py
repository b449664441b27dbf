"""Percentiles, goodput and the report."""

import pytest

from mamba_cli.bench.samples import LatencyLimits, Sample, peak, percentile, report, summary


def sample(**changes) -> Sample:
    fields = {"sent": 0.0, "end": 1.0, "ttft": 0.2, "prompt_tokens": 10, "output_tokens": 5, **changes}
    return Sample(**fields)


def test_percentiles_lie_between_neighbours() -> None:
    assert [percentile([1, 2, 4], rank) for rank in (0, 25, 50, 75, 100)] == [1, 1.5, 2, 3, 4]
    assert percentile([7], 99) == 7


@pytest.mark.parametrize(("values", "rank"), [([], 50), ([1], -1), ([1], 101)])
def test_a_percentile_of_nothing_is_refused(values, rank) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, rank)


def test_a_summary_is_in_milliseconds_and_absent_without_values() -> None:
    assert summary([0.003, 0.001, 0.002]) == {
        "mean": 2.0, "p50": 2.0, "p90": 2.8, "p95": 2.9, "p99": 2.98, "max": 3.0,
    }  # fmt: skip
    assert summary([]) is None


def test_time_per_output_token_leaves_out_the_first() -> None:
    assert sample().tpot == pytest.approx(0.2)
    assert sample(output_tokens=1).tpot is None
    assert sample(ttft=None).tpot is None


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (LatencyLimits(), True),
        (LatencyLimits(ttft=0.2, tpot=0.21, e2e=1.0), True),
        (LatencyLimits(ttft=0.19), False),
        (LatencyLimits(tpot=0.19), False),
        (LatencyLimits(e2e=0.99), False),
    ],
)
def test_an_slo_is_met_within_all_its_limits(slo, met) -> None:
    assert slo.met(sample()) is met


def test_failures_never_meet_an_slo_and_single_tokens_have_no_tpot_to_break() -> None:
    assert not LatencyLimits().met(sample(error="timeout"))
    assert not LatencyLimits().met(sample(ttft=None))
    assert LatencyLimits(tpot=0.001).met(sample(output_tokens=1))


def test_the_most_at_once_counts_overlaps_and_not_neighbours() -> None:
    spans = [(0, 2), (1, 3), (2, 4), (5, 6)]
    assert peak([sample(sent=a, end=b) for a, b in spans]) == 2
    assert peak([]) == 0


def test_the_report_counts_failures_for_goodput_and_not_for_latency() -> None:
    samples = [
        sample(sent=1.0, end=2.0, cached_tokens=4, itl=(0.2, 0.2)),
        sample(sent=1.0, end=3.0, ttft=1.5),
        sample(sent=1.0, end=5.0, ttft=None, error="timeout"),
        sample(sent=1.0, end=1.5, ttft=None, error="429 overloaded"),
    ]
    found = report(samples, LatencyLimits(ttft=1.0))
    assert found["requests"] == {
        "sent": 4, "ok": 2, "failed": 2, "errors": {"timeout": 1, "429 overloaded": 1}, "peak_concurrency": 4,
    }  # fmt: skip
    assert found["seconds"] == 4.0
    assert found["tokens"] == {"prompt": 20, "output": 10, "cached": 4, "cached_share": 0.2}
    assert found["rates"]["output_tokens_per_second"] == 2.5
    assert found["latency_ms"]["ttft"]["max"] == 1500
    assert found["latency_ms"]["itl"]["p50"] == 200
    assert found["goodput"]["met"] == 1
    assert found["goodput"]["attainment"] == 0.25
    assert found["goodput"]["slo_ms"] == {"ttft": 1000.0, "tpot": None, "e2e": None}


def test_a_report_of_nothing_has_no_numbers_and_does_not_fail() -> None:
    found = report([], LatencyLimits())
    assert found["requests"]["sent"] == 0
    assert found["latency_ms"]["ttft"] is None
    assert found["goodput"]["attainment"] == 0
