"""The serving benchmark's own parts: what it compares and how it tells it."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from mamba_cli.bench.samples import LatencyLimits, Sample, report


@pytest.fixture
def load_module(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))

    def load(name: str) -> ModuleType:
        __import__(f"benchmarks.{name}")
        return sys.modules[f"benchmarks.{name}"]

    return load


def test_tokens_agree_up_to_the_first_that_differs(load_module) -> None:
    same = load_module("serve").same_tokens
    assert same([1, 2, 3], [1, 2, 4]) == 2
    assert same([1, 2], [1, 2, 4]) == 2
    assert same([], [1]) == 0


def test_each_level_has_prompts_of_its_own(load_module) -> None:
    load = load_module("serve").ServeLoad(8, 2, rounds=2, levels=(1, 8))
    one, eight = load.prompts(1), load.prompts(8)
    assert (len(one), len(eight)) == (4, 16)
    assert len({prompt.token_ids for prompt in [*one, *eight]}) == 20


def test_the_summary_says_where_with_what_and_how_it_went(load_module) -> None:
    made = report(
        [Sample(sent=0, end=1, ttft=0.5, output_tokens=3), Sample(sent=0, end=1, error="timeout")],
        LatencyLimits(),
    )
    found = {
        "date": "2026-01-02T03:04:05+00:00",
        "machine": {
            "accelerator": None,
            "processor": "A Processor",
            "cores": 2,
            "memory_gib": 4.0,
            "system": "Linux 6",
            "load_average": [1.0, 2.0, 3.0],
            "python": "3.11.7",
            "versions": {"torch": "2.9"},
            "commit": "abc",
        },
        "threads": 2,
        "device": "cpu",
        "dtype": "float32",
        "engine_options": ["--page-size", "16"],
        "load": {"input_tokens": 10, "output_tokens": 3, "rounds": 1},
        "models": [
            {
                "model": "random",
                "greedy_tokens_equal": "3 of 3",
                "levels": [{"concurrency": 8, "engine": made, "transformers": report([], LatencyLimits())}],
            }
        ],
    }
    text = load_module("summary").markdown(found)
    for said in (
        "2026-01-02",
        "A Processor",
        "torch 2.9",
        "abc",
        "--page-size 16",
        "3 of 3",
        "1.0, 2.0, 3.0",
    ):
        assert said in text
    assert "| 8 | engine | 3.0 | 500.0 | 500.0 | 250.0 | 1,000.0 | 1 |" in text
    assert "| 8 | transformers | 0.0 | - | - | - | - | 0 |" in text


def test_an_unknown_benchmark_is_refused(load_module, capsys) -> None:
    assert load_module("run").main(["nonsense"]) == 2
    assert "serve" in capsys.readouterr().err


def test_an_engine_that_cannot_start_is_an_error_with_its_log(load_module, tmp_path) -> None:
    engine = load_module("engine")
    with (
        pytest.raises(engine.EngineFailed, match="the process ended with 2"),
        engine.running_engine(tmp_path / "none", threads=1, ready_within=60),
    ):
        raise AssertionError("it started")
