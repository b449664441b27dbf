"""The fleet simulation: every request ends once, the same seed gives the same run, time is the profile's."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.cache.block_trace import generated as blocks
from benchmarks.fleet.engine_profile import ProfileError, profile
from benchmarks.fleet.experiment import SCALERS, Experiment, ScalerName
from benchmarks.fleet.fit import fitted
from benchmarks.fleet.routers import GATEWAYS, ROUTERS, RouterName
from benchmarks.fleet.score import score

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine import SimulatedEngine, cache_of
from mamba_cli.fleet.engine_group import FixedSize
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.prompt_blocks import BLOCK
from mamba_cli.fleet.request import Request
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, TraceWorkload

PROFILE = EngineProfile(
    name="test", origin="assumed", prefill_tokens_per_second=1000, step_seconds=0.01, sequence_seconds=0.001,
    chunk_tokens=500, max_running=8, slabs=40, tokens_per_state=1024,
)  # fmt: skip
PLAIN = RequestStream(
    TraceWorkload("plain", 256, [Arrival(n * 0.4, 200 + 40 * (n % 5), 1 + 30 * (n % 3)) for n in range(60)]),
    False,
)
SHARED = RequestStream(TraceWorkload("shared", BLOCK, blocks(40, documents=4, depth=(2, 6))), True)
AROUND = FleetEnvironment(cold_start=5.0, most=6, initial=2)


class Script:
    """Asks for one number after the other."""

    period, delay = 2.0, 0.0

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = list(targets)

    def target(self, sample: object) -> int:
        del sample
        return self._targets.pop(0) if len(self._targets) > 1 else self._targets[0]


def served(router: RouterName) -> list[tuple[str, float | None]]:
    """Return the engines and end times of requests to a fleet of three behind this router."""
    run = Simulation(PLAIN, PROFILE, GATEWAYS[router], Script([3]), Slo(), replace(AROUND, initial=3), 1)
    run.run()
    return [(request.engine, request.ended_at) for request in run.requests]


def assert_all_ended_once(run: Simulation) -> None:
    for request in run.requests:
        assert request.lost != (request.ended_at is not None), request.number
        if request.ended_at is not None:
            assert request.first_token_at is not None
            assert request.arrived_at < request.first_token_at <= request.ended_at
    for pod in run.pods:
        if pod.phase != "gone":
            assert not pod.engine.requests()
            assert pod.engine.running_tokens == 0
            assert not pod.engine.cache.allocations


@pytest.mark.parametrize("scaler", SCALERS)
def test_with_every_autoscaler_every_request_ends_once(scaler: ScalerName) -> None:
    experiment = Experiment(PLAIN, PROFILE, Slo(1.0, 0.1), AROUND)
    found = experiment.run("ours", scaler)
    assert found.lostRequests == found.refused == 0
    assert found.requests == len(PLAIN.workload.arrivals)
    assert found == experiment.run("ours", scaler)


@pytest.mark.parametrize("router", ROUTERS)
def test_with_every_router_every_request_ends_once(router: RouterName) -> None:
    run = Simulation(SHARED, PROFILE, GATEWAYS[router], Script([2, 3, 3, 1, 1, 2]), Slo(), AROUND)
    run.run()
    assert_all_ended_once(run)
    assert not any(request.lost for request in run.requests)


def test_the_router_that_knows_prefixes_resumes_more_than_one_that_knows_load() -> None:
    experiment = Experiment(SHARED, PROFILE, Slo(), replace(AROUND, initial=3))
    ours, load = experiment.fixed("ours", 3), experiment.fixed("least-load", 3)
    assert ours.tokenHitRate > load.tokenHitRate
    assert ours.recomputedTokens < load.recomputedTokens


def test_a_fleet_that_shrinks_while_it_answers_loses_nothing() -> None:
    run = Simulation(
        PLAIN, PROFILE, SimulatedGateway, Script([5, 5, 5, 5, 1]), Slo(), replace(AROUND, initial=5)
    )
    run.run()
    assert_all_ended_once(run)
    assert not any(request.lost for request in run.requests)
    gone = [pod for pod in run.pods if pod.phase == "gone"]
    assert len(gone) == 4
    drained = [request for request in run.requests if request.engine in {pod.name for pod in gone}]
    assert max(r.ended_at for r in drained if r.ended_at is not None) > 8.0, "some were still being answered"


def test_engines_that_die_lose_what_they_had_begun_to_answer_and_no_more() -> None:
    around = replace(AROUND, initial=3, failures=500.0)
    run = Simulation(PLAIN, PROFILE, SimulatedGateway, FixedSize(3), Slo(), around, seed=3)
    run.run()
    assert_all_ended_once(run)
    lost = [request for request in run.requests if request.lost]
    assert lost
    assert all(request.first_token_at is not None for request in lost)
    assert len([pod for pod in run.pods if pod.phase in ("ready", "starting")]) == 3


def test_nobody_is_lost_when_spot_machines_go_with_notice() -> None:
    run = Simulation(
        PLAIN, PROFILE, SimulatedGateway, FixedSize(2), Slo(), replace(AROUND, spot=200.0), seed=1
    )
    run.run()
    assert_all_ended_once(run)
    assert not any(request.lost for request in run.requests)
    assert any(pod.phase == "gone" for pod in run.pods)


def test_the_same_seed_gives_the_same_run_and_another_one_other_starts() -> None:
    def ends(seed: int) -> list[float | None]:
        run = Simulation(PLAIN, PROFILE, SimulatedGateway, Script([2, 4]), Slo(), AROUND, seed)
        run.run()
        return [request.ended_at for request in run.requests]

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


@pytest.mark.parametrize("router", ROUTERS)
def test_another_process_plays_the_same(router: RouterName) -> None:
    code = f"from test_fleet_simulation import served; print(served({router!r}))"

    def played(hash_seed: str) -> bytes:
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": paths},
        ).stdout  # fmt: skip

    assert played("1") == played("2")


def test_requests_are_held_until_the_only_engine_is_there_again() -> None:
    class DiesAtOnce(Simulation):
        def _arrival(self, request: Request) -> None:
            if request.number == 0:
                self._fail(self.pods[0])
            super()._arrival(request)

    run = DiesAtOnce(
        PLAIN,
        PROFILE,
        SimulatedGateway,
        FixedSize(1),
        Slo(),
        replace(AROUND, initial=1, cold_start_spread=0.0),
    )
    run.run()
    assert_all_ended_once(run)
    assert min(r.first_token_at for r in run.requests if r.first_token_at is not None) > 5.0


def test_a_request_that_no_engine_can_hold_is_refused_and_not_judged() -> None:
    asked = RequestStream(TraceWorkload("long", 256, [Arrival(0.0, 10**6, 1), Arrival(1.0, 100, 1)]), False)
    run = Simulation(asked, PROFILE, SimulatedGateway, FixedSize(1), Slo(), AROUND)
    run.run()
    found = score(run)
    assert (found.refused, found.sloAttainment) == (1, 1.0)


def test_an_engine_takes_the_time_that_its_profile_says() -> None:
    engine = SimulatedEngine("e", PROFILE, cache_of(PROFILE, 256, 4096, prefix_caching=False))
    ids = np.zeros(1000, np.int32)
    one = Request(0, 0.0, lambda: ids, 1000, 11)
    engine.add(one, 0.0)
    # 1,000 tokens at 1,000 a second, in two steps of a hundredth.
    assert engine.step_run is not None
    assert engine.step_run.end == pytest.approx(1.02)
    engine.advance()
    assert one.first_token_at == pytest.approx(1.02)
    # Ten more tokens, each a step with one sequence in it; the second comes in the middle of the fourth.
    two = Request(1, 1.06, lambda: ids, 500, 1)
    two.prompt = lambda: ids[:500]
    engine.add(two, 1.02 + 3.5 * 0.011)
    assert engine.step_run.end == pytest.approx(1.02 + 4 * 0.011)
    engine.advance()
    # Its prompt shares one step with the fifth token: half a second, and what a step takes.
    assert engine.step_run is not None
    assert engine.step_run.end == pytest.approx(1.02 + 4 * 0.011 + 0.5 + 0.011)
    first, ended = engine.advance()
    assert (first, ended) == ([two], [two])
    _, ended = engine.advance()
    assert ended == [one]
    assert one.ended_at == pytest.approx(1.02 + 10 * 0.011 + 0.5)
    assert engine.step_run is None
    assert engine.totals.output_tokens == 12


def test_the_cheapest_fixed_fleet_attains_and_one_engine_less_does_not() -> None:
    experiment = Experiment(PLAIN, PROFILE, Slo(0.45, 0.015), AROUND)
    replicas, found = experiment.cheapest_fixed("ours")
    assert replicas > 1
    assert found.sloAttainment >= 0.95
    assert experiment.fixed("ours", replicas - 1).sloAttainment < 0.95


def test_shipped_profiles_say_where_their_numbers_are_from() -> None:
    for name in ("gpu-48g-assumed", "gpu-80g-assumed"):
        assert profile(name).origin.startswith("assumed")
    with pytest.raises(ProfileError, match="gpu-80g-assumed"):
        profile("no-such")
    assert "sloAttainment" in asdict(Experiment(PLAIN, PROFILE, Slo(), AROUND).fixed("ours", 1))


def test_a_fit_finds_the_costs_that_made_the_measurements_and_says_how_far_it_is_off() -> None:
    def level(wide: int, noise: float = 1.0) -> dict[str, object]:
        outputs, computed = 24 * 4 * wide, 128 * 4 * wide
        seconds = computed / 200 + outputs / wide * 0.05 + outputs * 0.002
        tpot = {"mean": 1000 * (0.05 + 0.002 * wide) * noise}
        found = {
            "seconds": seconds,
            "tokens": {"prompt": computed + 10, "cached": 10, "output": outputs},
            "latency_ms": {"tpot": tpot},
        }
        return {"concurrency": wide, "engine": found}

    exact = fitted("m", [level(wide) for wide in (1, 8, 32)], "fitted")
    assert exact.prefill_tokens_per_second == pytest.approx(200, rel=1e-3)
    assert (exact.step_seconds, exact.sequence_seconds) == pytest.approx((0.05, 0.002), rel=1e-3)
    assert exact.fit_error == 0.0
    noisy = fitted("m", [level(1), level(8, 1.5), level(32)], "fitted")
    assert noisy.fit_error is not None
    assert noisy.fit_error > 0.02
    with pytest.raises(ValueError, match="two widths"):
        fitted("m", [level(1)], "fitted")
