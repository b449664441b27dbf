"""The time of a step from what the readers of streams saw."""

import pytest
from benchmarks.engine_cpu_http import streamed_step

from mamba_cli.bench.samples import Sample


def test_only_steps_that_all_streams_share_count() -> None:
    early = Sample(sent=0.0, ttft=1.0, itl=(5.0, 2.0, 2.0), end=10.0)
    late = Sample(sent=0.0, ttft=6.0, itl=(2.0, 2.0, 9.0), end=19.0)

    assert streamed_step([early, late]) == 2.0


def test_a_failed_request_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="timeout"):
        streamed_step([Sample(sent=0.0, end=1.0, error="timeout")])


def test_streams_that_never_ran_together_are_no_measurement() -> None:
    early = Sample(sent=0.0, ttft=1.0, itl=(1.0,), end=2.0)
    late = Sample(sent=0.0, ttft=6.0, itl=(2.0,), end=8.0)
    with pytest.raises(RuntimeError, match="before the last one began"):
        streamed_step([early, late])
