"""The rules that the product's autoscaler is compared with, by hand-computed cases; it, if it sees late."""

from functools import cache

import pytest
from benchmarks.fleet.engine_profile import profile
from benchmarks.fleet.generated_hours import LengthDistribution, plain
from benchmarks.fleet.scalers.hpa import Hpa, hpa_kv, hpa_queue
from benchmarks.fleet.scalers.kpa import Kpa
from benchmarks.fleet.scalers.oracle import Oracle
from benchmarks.fleet.scalers.own import OwnScaler
from benchmarks.fleet.scalers.stabilization import Stabilization
from benchmarks.fleet.scalers.wva import Wva
from benchmarks.fleet.score import Score, score

from mamba_cli.fleet.engine import EngineCounters
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.sample import EngineSample, FleetSample
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import Slo


def sample(
    at: float, ready: int, *, pending: int = 0, waiting: int = 0, usage: float = 0.0, tokens: int = 0,
    in_flight: int = 0,
) -> FleetSample:  # fmt: skip
    engines = tuple(
        EngineSample(
            f"e{n}",
            0,
            waiting,
            usage,
            usage,
            0.0,
            tokens,
            0.0,
            0.01,
            EngineCounters(arrivals=10, prompt_tokens=1000),
        )
        for n in range(ready)
    )
    names = tuple(f"p{n}" for n in range(pending))
    return FleetSample(at, ready + pending, engines, names, in_flight, 0, 0)


@pytest.mark.parametrize(
    ("usage", "replicas", "wanted"),
    [(0.8, 4, 4), (0.87, 4, 4), (0.9, 4, 5), (1.0, 4, 5), (1.0, 10, 13)],
)
def test_hpa_grows_by_the_ratio_beyond_its_tolerance(usage: float, replicas: int, wanted: int) -> None:
    assert hpa_kv(0.8).target(sample(0, replicas, usage=usage)) == wanted


def test_hpa_grows_by_as_many_again_or_four_at_most() -> None:
    assert hpa_queue(5).target(sample(0, 2, waiting=100)) == 6
    assert hpa_queue(5).target(sample(0, 8, waiting=100)) == 16


def test_hpa_takes_pods_that_start_for_idle() -> None:
    # 2 ready at twice the goal, 2 starting: the mean over four is the goal.
    assert hpa_queue(5).target(sample(0, 2, pending=2, waiting=10)) == 4


def test_hpa_shrinks_to_the_most_of_five_minutes() -> None:
    hpa = hpa_kv(0.8)
    assert hpa.target(sample(0, 4, usage=0.8)) == 4
    for at in range(15, 300, 15):
        assert hpa.target(sample(at, 4, usage=0.2)) == 4
    assert hpa.target(sample(300, 4, usage=0.2)) == 1


def test_hpa_without_metrics_changes_nothing() -> None:
    assert Hpa(lambda engine: engine.waiting, 5).target(sample(0, 0, pending=3)) == 3


def test_kpa_follows_the_mean_of_a_minute() -> None:
    kpa = Kpa(concurrency=10)
    for at in range(0, 60, 2):
        assert kpa.target(sample(at, 3, in_flight=21)) == 3
    assert kpa.target(sample(60, 3, in_flight=21)) == 3


def test_kpa_panics_at_twice_what_is_ready_and_does_not_shrink_meanwhile() -> None:
    kpa = Kpa(concurrency=10)
    for at in range(0, 60, 2):
        kpa.target(sample(at, 2, in_flight=14))
    # The mean of six seconds asks for six, thrice what is ready.
    for at in (60, 62, 64):
        kpa.target(sample(at, 2, in_flight=42))
    assert kpa.target(sample(66, 2, in_flight=42)) == 6
    assert kpa.target(sample(80, 6, in_flight=0)) == 6
    for at in range(82, 140, 2):
        last = kpa.target(sample(at, 6, in_flight=0))
    assert last == 3, "at most half of what is ready in one decision, once the panic is over"


def test_wva_adds_one_engine_unless_those_that_start_will_do() -> None:
    # 0.8 of 1,000 tokens each: two hold 1,600; 1,500 / 0.85 needs more.
    assert Wva(1000).target(sample(0, 2, tokens=750)) == 3
    assert Wva(1000).target(sample(0, 2, pending=1, tokens=750)) == 3


def test_wva_gives_one_up_after_five_minutes_if_the_others_have_room() -> None:
    wva = Wva(1000)
    for at in range(0, 300, 15):
        wva.target(sample(at, 3, tokens=600 if at == 0 else 100))
    assert wva.target(sample(300, 3, tokens=100)) == 2


def test_the_largest_recommendation_of_the_window_holds() -> None:
    window = Stabilization(100)
    assert [window.applied(at, wanted) for at, wanted in ((0, 5), (50, 3), (99, 1), (100, 1), (150, 1))] == [
        5, 5, 5, 3, 1,
    ]  # fmt: skip


def test_the_oracle_asks_before_engines_are_needed() -> None:
    oracle = Oracle([(0.0, 1), (15.0, 1), (30.0, 4), (45.0, 2)], ahead=20.0)
    assert [oracle.target(sample(at, 1)) for at in (0, 15, 45, 75)] == [1, 4, 4, 1]


@cache
def grown(late: int) -> Score:
    """Score four minutes for one engine, sixteen for two; decisions lag by some looks."""
    asked = plain(
        lambda at: 0.0 if at > 1200 else 1.0 if at > 240 else 0.3, 4.0, LengthDistribution(5000, 60), seed=11
    )
    engine = profile("gpu-80g-assumed")
    scaler = OwnScaler(engine, ttft=2.0, tpot=0.1, least=1, most=6)
    scaler.delay = late * scaler.period
    run = Simulation(asked, engine, SimulatedGateway, scaler, Slo(), FleetEnvironment(most=6))
    run.run()
    return score(run)


@pytest.mark.parametrize("late", [1, 2])
def test_a_fleet_that_is_seen_late_grows_as_far_and_stays_there(late: int) -> None:
    at_once, found = grown(0), grown(late)

    assert found.peakReplicas == at_once.peakReplicas == 2
    assert found.changes == 1
    assert found.reversals == 0
    assert found.lostRequests == 0
    assert found.sloAttainment >= at_once.sloAttainment - 0.02
