"""Traffic that is held out: its shapes, that it is the same each time, and what is said of who won."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from random import Random

import pytest
from benchmarks.cache.workloads import GENERATED
from benchmarks.fleet.__main__ import main
from benchmarks.fleet.comparison import Row
from benchmarks.fleet.experiment import SCALERS, ScalerName
from benchmarks.fleet.generated_hours import LengthDistribution
from benchmarks.fleet.holdout_hours import HOLDOUTS, holdout
from benchmarks.fleet.score import Score
from benchmarks.fleet.shapes import HOUR, bursts, drift, evening, on_off, ramp, spiked
from benchmarks.fleet.tuning_hours import PRACTICE, SEED, practice
from benchmarks.fleet.wins_and_losses import verdict, winners

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.workload import RequestStream, TraceWorkload

SCORE = Score(1.0, 100.0, 0, 0, 0.0, 0, 0.0, 0, 10, 0, 1.0, 1, 0.1, 0.2, 0.01, 0)


@cache
def made(name: str) -> RequestStream:
    return practice(name) if name in PRACTICE else holdout(name)


def minutes(asked: RequestStream) -> list[int]:
    found = [0] * 61
    for arrival in asked.workload.arrivals:
        found[int(arrival.at // 60)] += 1
    return found


@pytest.mark.parametrize("name", [*PRACTICE, *HOLDOUTS])
def test_each_is_an_hour_of_requests_and_the_same_each_time(name: str) -> None:
    asked = made(name)
    arrivals = asked.workload.arrivals
    assert asked == made.__wrapped__(name)
    assert 0.9 * HOUR < arrivals[-1].at < HOUR
    assert [each.at for each in arrivals] == sorted(each.at for each in arrivals)
    assert len(arrivals) > 2000
    assert asked.identity == any(arrival.block_ids for arrival in arrivals)


def test_no_holdout_is_a_workload_that_is_used_elsewhere() -> None:
    lengths = {tuple(a.input_tokens for a in make(200).arrivals) for make in GENERATED}
    for name in [*PRACTICE, *HOLDOUTS]:
        assert tuple(a.input_tokens for a in made(name).workload.arrivals[:200]) not in lengths


def test_the_ramp_grows_and_then_stays() -> None:
    found = minutes(made("ramp"))
    assert sum(found[40:45]) > 4 * sum(found[:5])
    assert sum(found[50:55]) == pytest.approx(sum(found[55:60]), rel=0.1)
    assert (ramp(0.0), ramp(HOUR)) == (0.1, 1.0)


def test_on_and_off_go_from_nearly_nothing_to_all_and_back() -> None:
    found = minutes(made("on-off"))
    high, low = max(found), min(found[:60])
    assert low < 0.1 * high
    above = [count > high / 2 for count in found[:60]]
    assert sum(one != other for one, other in itertools.pairwise(above)) >= 6
    assert {on_off(SEED)(float(second)) for second in range(0, 3600, 10)} == {0.05, 1.0}


def test_spikes_come_suddenly_and_other_seeds_have_others() -> None:
    shape = [spiked(SEED)(float(second)) for second in range(3600)]
    assert sum(after - before > 0.4 for before, after in itertools.pairwise(shape)) >= 3
    assert shape != [spiked(SEED + 1)(float(second)) for second in range(3600)]
    assert max(shape) <= 1.0


def test_none_of_what_is_held_out_is_practised() -> None:
    assert not HOLDOUTS.keys() & PRACTICE.keys()
    times = {made(name).workload.arrivals[0].at for name in [*PRACTICE, *HOLDOUTS]}
    assert len(times) == len(PRACTICE) + len(HOLDOUTS)


def test_bursts_come_and_go_and_a_drift_takes_no_leap() -> None:
    burst = [bursts(1, 0.2, 300, 60, 120)(float(second)) for second in range(3600)]
    assert set(burst) == {0.2, 1.0}
    assert 4 <= sum(one != other for one, other in itertools.pairwise(burst)) <= 40
    walk = [drift(1)(float(second)) for second in range(3600)]
    assert max(after / before for before, after in itertools.pairwise(walk)) < 1.6
    assert min(walk) >= 0.19
    assert max(walk) > 1.5 * min(walk)
    assert (evening(0.0), evening(HOUR)) == (1.0, 1 / 7)


@pytest.mark.parametrize(("name", "first"), [("longer", False), ("shorter", True)])
def test_the_share_of_long_prompts_changes_half_way(name: str, first: bool) -> None:
    arrivals = made(name).workload.arrivals
    halves = [
        [arrival.input_tokens for arrival in arrivals if (arrival.at < HOUR / 2) == early]
        for early in (True, False)
    ]
    means = [sum(half) / len(half) for half in halves]
    assert (means[0] > 3 * means[1]) == first
    assert (means[1] > 3 * means[0]) != first


def test_heavy_tails_have_longer_prompts_at_the_same_mean() -> None:
    def drawn(tail: float) -> list[int]:
        rng = Random(5)
        return sorted(LengthDistribution(3000, 10, tail=tail).draw(rng)[0] for _ in range(20_000))

    light, heavy = drawn(0.0), drawn(1.0)
    assert sum(heavy) / 20_000 == pytest.approx(3000, rel=0.2)
    assert heavy[10_000] < light[10_000]
    assert sum(each == heavy[-1] for each in heavy) > sum(each == heavy[-1] for each in light)


def row(load: str, scaler: ScalerName, attained: float, seconds: float) -> Row:
    score = replace(SCORE, sloAttainment=attained, gpuSeconds=seconds, reversals=2)
    return Row(load, "ours", scaler, score, round(seconds / 100, 3))


def test_the_cheapest_rule_that_keeps_the_goal_wins_and_who_knows_more_cannot() -> None:
    rows = [
        row("a", "fixed", 0.95, 10), row("a", "ours", 0.96, 120), row("a", "hpa-kv", 0.5, 20),
        row("a", "wva", 0.95, 110), row("a", "oracle", 1.0, 5),
        row("b", "fixed", 0.95, 10), row("b", "ours", 0.99, 80), row("b", "hpa-kv", 0.94, 30),
        row("b", "wva", 0.97, 90), row("b", "oracle", 1.0, 5),
        row("c", "ours", 0.9, 80), row("c", "wva", 0.9, 90),
    ]  # fmt: skip
    assert winners(rows) == {"a": ["wva"], "b": ["ours"], "c": []}
    lines = verdict(rows)
    assert "| ours | 3 | 2 | 95.0% | 0.93 | 6 | 1 |" in lines
    assert "| oracle | 2 | 2 | 100.0% | 0.05 | 4 | - |" in lines


def compared(folder: Path, options: Sequence[str]) -> list[dict[str, object]]:
    assert main(["--holdout", "ramp", "on-off", "--compare", "--out", str(folder), *options]) == 0
    (found,) = folder.glob("*-fleet-holdouts.json")
    rows: list[dict[str, object]] = json.loads(found.read_text(encoding="utf-8"))["rows"]
    return rows


def test_all_loads_are_in_one_table_however_many_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ramp", "on-off"):
        small = TraceWorkload(name, 256, [Arrival(n * 0.5, 300, 5) for n in range(60)])
        monkeypatch.setitem(HOLDOUTS, name, partial(RequestStream, small, False))
    one = compared(tmp_path / "one", ("--load-scale", "1", "2"))
    assert [each["workload"] for each in one[:: len(SCALERS)]] == [
        "holdout-ramp x1", "holdout-ramp x2", "holdout-on-off x1", "holdout-on-off x2",
    ]  # fmt: skip
    assert {str(each["scaler"]) for each in one} == set(SCALERS)
    assert {each["router"] for each in one} == {"ours"}
    few = compared(tmp_path / "few", ("--scalers", "wva", "ours"))
    assert [each["scaler"] for each in few] == ["fixed", "wva", "ours"] * 2
    two = compared(tmp_path / "two", ("--load-scale", "1", "2", "--jobs", "2"))
    assert two == one
