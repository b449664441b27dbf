"""The picture of the CPU benchmark is drawn from what the benchmark writes."""

import json
from pathlib import Path

import pytest
from benchmarks.engine_cpu_plot import main, shares, tokens_per_second

RECORDED = Path(__file__).parents[3] / "benchmarks/results/2026-11-25-engine-cpu-zen4.json"


def test_rates_are_tokens_by_the_median_of_the_rounds() -> None:
    rounds = [{"C++": {"wall": wall}} for wall in (0.5, 2.0, 1.0)]
    found = {"ways": ["C++"], "steps": {"decode 8": rounds}}

    assert tokens_per_second(found, "decode 8") == {"C++": 8.0}
    assert shares(found, "decode 8") == {}


def test_shares_are_of_the_first_way_and_make_a_whole() -> None:
    found = json.loads(RECORDED.read_text(encoding="utf-8"))

    parts = shares(found, "prefill 512")

    assert sum(parts.values()) == pytest.approx(1.0)
    assert max(parts, key=lambda kind: parts[kind]) == "mamba"


def test_the_same_results_give_the_same_picture(tmp_path: Path) -> None:
    first, again = tmp_path / "one.svg", tmp_path / "two.svg"

    main([str(RECORDED), str(first)])
    main([str(RECORDED), str(again)])

    assert first.read_bytes() == again.read_bytes()
