"""Two simulated pools: each request ends once, states take time and memory, each pool is scaled alone."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from mamba_api.choices import Role
from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.engine import SimulatedEngine, cache_of
from mamba_cli.fleet.engine_group import FixedSize, Scaler
from mamba_cli.fleet.engine_profile import EngineProfile
from mamba_cli.fleet.environment import FleetEnvironment
from mamba_cli.fleet.pooled_simulation import LinkSpeed, Network, PooledSimulation, PoolPlan
from mamba_cli.fleet.sample import FleetSample
from mamba_cli.fleet.slo import Slo
from mamba_cli.fleet.workload import RequestStream, TraceWorkload

MIB = 1 << 20
PROFILE = EngineProfile(
    name="test", origin="assumed", prefill_tokens_per_second=4000, step_seconds=0.01, sequence_seconds=0.001,
    chunk_tokens=500, max_running=8, slabs=40, tokens_per_state=1024, state_bytes=100 * MIB, page_tokens=64,
)  # fmt: skip
PLAIN = RequestStream(
    TraceWorkload("plain", 64, [Arrival(n * 0.4, 200 + 300 * (n % 5), 1 + 30 * (n % 3)) for n in range(60)]),
    False,
)
ONE = RequestStream(TraceWorkload("one", 64, [Arrival(0.0, 1000, 5)]), False)


class Recorder:
    """Scaler that keeps what it sees, and asks for one number after the other."""

    period, delay = 2.0, 0.0

    def __init__(self, targets: Sequence[int]) -> None:
        self._targets = list(targets)
        self.samples: list[FleetSample] = []

    def target(self, sample: FleetSample) -> int:
        self.samples.append(sample)
        return self._targets.pop(0) if len(self._targets) > 1 else self._targets[0]


def pools(prefill: Scaler, decode: Scaler, initial: int = 1) -> dict[Role, PoolPlan]:
    around = FleetEnvironment(cold_start=5.0, most=6, initial=initial)
    return {"prefill": PoolPlan(prefill, around, 2.0), "decode": PoolPlan(decode, around, 2.0)}


def ran(
    stream: RequestStream = PLAIN,
    plans: dict[Role, PoolPlan] | None = None,
    profile: EngineProfile = PROFILE,
    link: LinkSpeed = LinkSpeed(1e9),  # noqa: B008 - frozen
    hand_over_tokens: int = 512,
) -> PooledSimulation:
    run = PooledSimulation(
        stream, profile, plans or pools(FixedSize(1), FixedSize(1)), Slo(), link,
        hand_over_tokens=hand_over_tokens,
    )  # fmt: skip
    run.run()
    return run


def test_every_request_ends_once_at_a_decode_engine_and_nothing_is_left_in_a_cache() -> None:
    run = ran()
    roles = {pod.name: pod.role for pod in run.pods}

    assert all(request.ended_at is not None and not request.lost for request in run.requests)
    assert {roles[request.engine] for request in run.requests} == {"decode"}
    long = [request for request in run.requests if request.prompt_tokens >= 512]
    assert (run.handed_over, run.recomputed) == (len(long), 0)
    for pod in run.pods:
        capacity = pod.engine.cache.capacity
        assert (capacity.receiving, capacity.exported, capacity.admitted) == (0, 0, 0)


def test_a_prompt_is_computed_once_and_the_decode_engine_computes_what_is_left_of_it() -> None:
    [request] = ran(ONE).requests

    assert request.resumed == 960  # whole pages of 64 below its last token
    assert request.computed == 1000


def test_short_prompts_are_computed_by_the_decode_engine() -> None:
    run = ran(hand_over_tokens=2000)

    assert run.handed_over == 0
    assert not [pod for pod in run.pods if pod.role == "prefill" and pod.engine.totals.arrivals]


def test_a_state_takes_its_bytes_by_the_bandwidth_of_the_link() -> None:
    fast, slow = (ran(ONE, link=LinkSpeed(speed, 0.0)).requests[0] for speed in (1e12, 1e9))
    assert fast.first_token_at is not None
    assert slow.first_token_at is not None
    size = 100 * MIB * (1 + 960 / 1024)

    assert slow.first_token_at - fast.first_token_at == pytest.approx(size * (1e-9 - 1e-12))


def test_a_link_carries_one_state_after_the_other() -> None:
    network = Network(LinkSpeed(100 * MIB, 0.0), PROFILE)

    assert network.send("a", "x", 0, 0.0) == pytest.approx(1.0)
    assert network.send("a", "y", 0, 0.5) == pytest.approx(2.0)
    assert network.send("b", "y", 0, 0.5) == pytest.approx(3.0)
    assert network.send("b", "z", 0, 5.0) == pytest.approx(6.0)


def test_the_same_seed_gives_the_same_run() -> None:
    first, again = ([request.ended_at for request in ran().requests] for _ in range(2))
    assert first == again


def test_each_pool_is_scaled_by_its_own_scaler() -> None:
    prefill, decode = Recorder([1, 1, 3, 3, 3, 1]), Recorder([1, 2])
    run = ran(plans=pools(prefill, decode))
    count = {role: sum(pod.role == role for pod in run.pods) for role in ("prefill", "decode")}

    assert count == {"prefill": 3, "decode": 2}
    assert {target for _, target in run.groups["prefill"].history.targets} == {1, 3}
    names = {pod.name for pod in run.pods if pod.role == "prefill"}
    assert all(engine.name in names for sample in prefill.samples for engine in sample.ready)
    assert all(request.ended_at is not None for request in run.requests)


def test_states_wait_at_prefill_engines_while_decode_engines_have_no_room_and_the_scaler_sees_it() -> None:
    """A decode engine of six slots runs two answers: further states cannot travel."""
    tight = replace(PROFILE, slabs=6)
    arrivals = [Arrival(0.3 * n, 900, 200) for n in range(60)]
    stream = RequestStream(TraceWorkload("crowd", 64, arrivals), False)
    prefill, decode = Recorder([3]), Recorder([1])
    run = ran(stream, pools(prefill, decode), tight)

    assert all(request.ended_at is not None for request in run.requests)
    assert any(sample.readers_full for sample in prefill.samples)
    assert not any(sample.readers_full for sample in decode.samples)


def test_deaths_of_engines_are_refused() -> None:
    plan = PoolPlan(FixedSize(1), FleetEnvironment(failures=1.0), 2.0)
    with pytest.raises(ValueError, match="deaths of engines are not simulated"):
        PooledSimulation(PLAIN, PROFILE, {"prefill": plan, "decode": plan}, Slo(), LinkSpeed())


def test_prompts_of_which_nothing_is_known_share_no_token() -> None:
    run = ran()
    tokens = np.concatenate([request.prompt() for request in run.requests])

    assert len(np.unique(tokens)) == len(tokens)


def test_a_simulated_engine_offers_the_places_that_the_planner_counts() -> None:
    small = replace(PROFILE, slabs=8)
    engine = SimulatedEngine("one", small, cache_of(small, 64, 1000, prefix_caching=True))
    slots, each = engine.cache.capacity.free_slots, engine.cache.capacity.slots_per_sequence
    assert engine.credits == slots // each > slots // (each + 1)
