"""Shared resources of engines: the way to them takes time, and a lack of cores slows everything."""

from typing import Any

import msgspec
import numpy as np
import pytest

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine import SimulatedEngine, cache_of
from mamba_cli.fleet.engine_group import FixedSize
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment, Machine
from mamba_cli.fleet.gateway import SimulatedGateway
from mamba_cli.fleet.request import Request
from mamba_cli.fleet.simulation import Simulation
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, TraceWorkload

PROFILE = EngineProfile(
    name="test", origin="assumed", prefill_tokens_per_second=1000, step_seconds=0.01, sequence_seconds=0.0,
    chunk_tokens=5000, max_running=8, slabs=400, tokens_per_state=1024,
)  # fmt: skip


def asked(*arrivals: tuple[float, int], outputs: int = 1) -> RequestStream:
    return RequestStream(
        TraceWorkload("w", 256, [Arrival(at, tokens, outputs) for at, tokens in arrivals]), False
    )


def shared(*blocks: tuple[int, ...]) -> RequestStream:
    made = [Arrival(10.0 * n, 48 * len(ids), 1, ids) for n, ids in enumerate(blocks)]
    return RequestStream(TraceWorkload("w", 48, made), True)


def ended(
    what: RequestStream, machine: Machine, engines: int = 2, profile: EngineProfile = PROFILE, seed: int = 0
) -> list[Request]:
    around = FleetEnvironment(least=engines, most=engines, initial=engines, machine=machine)
    simulation = Simulation(what, profile, SimulatedGateway, FixedSize(engines), Slo(), around, seed)
    simulation.run()
    assert all(request.ended_at is not None for request in simulation.requests)
    return simulation.requests


def profile_with(**changes: Any) -> EngineProfile:
    return msgspec.structs.replace(PROFILE, **changes)


def ttft(request: Request) -> float:
    assert request.first_token_at is not None
    return request.first_token_at - request.arrived_at


def test_the_way_to_an_engine_is_part_of_the_time_to_the_first_token() -> None:
    (one,) = ended(asked((1.0, 200)), Machine(transit_seconds=0.05, transit_token_seconds=0.001))
    assert ttft(one) == pytest.approx(0.05 + 0.2 + 0.2 + 0.01)


def test_who_is_on_the_way_keeps_no_engine_waiting() -> None:
    one, two = ended(asked((1.0, 200), (1.02, 100)), Machine(transit_seconds=0.05), engines=1)
    assert ttft(one) == pytest.approx(0.05 + 0.21)
    # It has come while the first was being computed, and waits for the rest of that.
    assert ttft(two) == pytest.approx(0.05 + (0.21 - 0.02) + 0.11)


def test_jitter_is_drawn_from_what_was_measured_and_the_same_for_a_seed() -> None:
    what = asked(*((float(n), 100) for n in range(30)))
    machine = Machine(transit_seconds=0.05, jitter=(-0.01, 0.02))
    found = [round(ttft(each), 6) for each in ended(what, machine)]
    assert set(found) == {0.15, 0.18}
    assert found == [round(ttft(each), 6) for each in ended(what, machine)]
    assert found != [round(ttft(each), 6) for each in ended(what, machine, seed=1)]


def test_two_engines_on_one_core_take_twice_as_long_while_both_work() -> None:
    what = asked((0.0, 1000), (0.5, 1000))
    one, two = ended(what, Machine(cores=1.0))
    # Half a second alone, the other half shared; then the second is half done, and alone.
    assert ttft(one) == pytest.approx(0.5 + 2 * 0.51)
    assert ttft(two) == pytest.approx(2 * 0.51 + 0.5)
    alone, other = ended(what, Machine(cores=2.0))
    assert ttft(alone) == ttft(other) == pytest.approx(1.01)


def test_the_way_shares_the_cores_too() -> None:
    one, two = ended(asked((0.0, 1000), (0.5, 100)), Machine(cores=1.0, transit_seconds=0.1))
    # The second is on its way while the first computes: 0.2 instead of 0.1, then both compute.
    assert ttft(two) == pytest.approx(0.2 + 2 * 0.11)
    assert ttft(one) == pytest.approx(0.1 + 1.01 + 0.1 + 0.11)


def test_an_engine_that_uses_less_of_a_core_leaves_the_rest() -> None:
    one, two = ended(asked((1.0, 1000), (1.0, 1000)), Machine(cores=1.0, used=0.5))
    assert ttft(one) == ttft(two) == pytest.approx(1.01)


def test_steps_that_are_over_stay_over_when_an_engine_gets_slower() -> None:
    engine = SimulatedEngine("e", PROFILE, cache_of(PROFILE, 256, 4096, prefix_caching=False))
    ids = np.zeros(100, np.int32)
    engine.add(Request(0, 0.0, lambda: ids, 100, 11), 0.0)
    engine.advance()
    begun = 0.11
    engine.slow(2.0, begun + 0.045)
    assert engine.step_run is not None
    # Ten steps; four and a half are over, and the rest takes twice as long.
    assert engine.step_run.end == pytest.approx(begun + 0.045 + 2 * 0.055)
    engine.add(Request(1, 0.0, lambda: ids, 100, 1), begun + 0.05)
    assert engine.step_run.end == pytest.approx(begun + 0.045 + 2 * 0.005)
    assert engine.step_run.steps == 5


def test_a_prompt_that_goes_on_from_a_checkpoint_pays_for_that() -> None:
    profile = profile_with(resume_seconds=0.5, page_tokens=16)
    new, again = ended(shared((1, 2, 3), (1, 2, 3, 4)), Machine(), 1, profile)
    assert new.resumed == 0
    assert again.resumed == 144
    assert ttft(new) == pytest.approx(0.144 + 0.01)
    assert ttft(again) == pytest.approx(0.048 + 0.01 + 0.5)


def test_checkpoints_lie_where_the_profile_says() -> None:
    long, part = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (1, 2, 3, 4, 5, 6, 7, 20)

    def resumed(**changes: int) -> int:
        return ended(shared(long, part), Machine(), 1, profile_with(**changes))[1].resumed

    # Of the 336 tokens that both begin with.
    assert resumed() == 336
    assert resumed(page_tokens=16, track_interval=256) == 256


def test_a_machine_by_default_shares_nothing() -> None:
    assert not Machine().shared
    assert Machine().slowness(10**6) == 1.0
    assert Machine(cores=2.0, used=0.5).slowness(8) == 2.0
