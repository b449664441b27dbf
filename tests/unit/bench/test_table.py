"""The report as people read it."""

import io
from typing import Any

import pytest
from rich.console import Console

from mamba_cli.bench.samples import LatencyLimits, Sample, report
from mamba_cli.bench.table import render


def shown(samples: list[Sample], slo: LatencyLimits | None = None, width: int = 100) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(render(report(samples, slo or LatencyLimits())))
    return output.getvalue()


def sample(**changes: Any) -> Sample:
    fields = {"sent": 0.0, "end": 2.0, "ttft": 0.5, "prompt_tokens": 1000, "output_tokens": 4, **changes}
    return Sample(**fields)


def row(text: str, words: str) -> list[str]:
    [line] = [line for line in text.splitlines() if words in line]
    return [cell.strip() for cell in line.strip("│").split("│")]


def test_latencies_are_rows_of_milliseconds() -> None:
    text = shown([sample(), sample(ttft=1.5)])
    assert row(text, "time to first token") == [
        "time to first token", "1,000.0", "1,000.0", "1,400.0", "1,450.0", "1,490.0", "1,500.0"
    ]  # fmt: skip


def test_a_latency_nobody_measured_is_a_dash_in_every_column() -> None:
    assert row(shown([sample(output_tokens=1)]), "time per output token")[1:] == ["-"] * 6


def test_counts_and_rates_are_shown_with_their_units() -> None:
    text = shown([sample(cached_tokens=250), sample(end=4.0)])
    assert row(text, "requests/s") == ["requests/s", "0.50"]
    assert row(text, "prompt tokens") == ["prompt tokens", "2,000"]
    assert row(text, "resumed from cache") == ["resumed from cache", "250 (12.5 %)"]
    assert row(text, "most in flight") == ["most in flight", "2"]


def test_goodput_is_shown_where_a_limit_was_given_and_names_the_limits() -> None:
    assert "goodput" not in shown([sample()])
    text = shown([sample(), sample(ttft=1.5)], LatencyLimits(ttft=1.0, e2e=10.0))
    assert row(text, "goodput") == ["goodput (ttft 1000 ms, e2e 10000 ms)", "0.50/s, 50.0 %"]


def test_errors_are_listed_by_kind_most_first_and_only_if_there_are_any() -> None:
    assert "errors" not in shown([sample()])
    failed = [sample(error="timeout", ttft=None), *[sample(error="429 overloaded", ttft=None)] * 2]
    text = shown([sample(), *failed])
    assert row(text, "429 overloaded")[1] == "2"
    assert text.index("429 overloaded") < text.index("timeout")
    assert row(text, "ok,") == ["requests", "1 ok, 3 failed"]


def test_an_error_that_looks_like_markup_is_shown_as_it_is() -> None:
    assert "400 [red]x[/]" in shown([sample(error="400 [red]x[/]", ttft=None)])


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_run_of_nothing_is_a_table_too(width: int) -> None:
    text = shown([], width=width)
    assert "0 ok, 0 failed" in text
    assert all(len(line) <= width for line in text.splitlines())
