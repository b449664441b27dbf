"""Measured speeds of equal engines: uncertain differences are ignored, certain ones count."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_gateway.endpoints.engine_speed import EngineSpeed, pooled_speed
from mamba_gateway.endpoints.pool import Pool, ProbeReport, Target
from mamba_gateway.routing.decision import RoutingDecision, choose
from mamba_gateway.routing.scoring import RoutingRequest, home_of

SPEEDS = st.builds(
    EngineSpeed, st.floats(10.0, 1e6), st.just(1e-6), st.just(0.01), st.floats(0.001, 1.0)
)  # fmt: skip


def measured(speed: float, error: float) -> EngineSpeed:
    return EngineSpeed(speed, 1e-6, 0.01, error)


def pool_of(*speeds: EngineSpeed | None, model: str = "m") -> Pool:
    """Return engines e0, e1, ... with these measurements."""
    pool = Pool()
    pool.set_targets(Target(f"http://e{n}", f"e{n}") for n in range(len(speeds)))
    # The first ones were looked at before the others had said anything: look twice.
    for n, speed in [*enumerate(speeds)] * 2:
        pool.report(f"http://e{n}", report(speed, model))
    return pool


def report(speed: EngineSpeed | None, model: str = "m") -> ProbeReport:
    return ProbeReport(ready=True, models=({"id": model},), speed=speed, prompt_tokens_waiting=0.0, room=1e9)


def test_engines_that_differ_by_chance_are_as_fast_as_each_other() -> None:
    fleet = [measured(50_000, 0.1), measured(62_000, 0.1), measured(41_000, 0.1), measured(9_000, 1.0)]
    found = {pooled_speed(one, fleet).tokens_per_second for one in fleet}
    assert max(found) == pytest.approx(min(found))
    assert 41_000 < min(found) < 62_000


def test_a_surely_slower_engine_is_slower() -> None:
    fleet = [measured(40_000, 0.02), measured(40_000, 0.02), measured(10_000, 0.02)]
    fast, _, slow = [pooled_speed(one, fleet).tokens_per_second for one in fleet]
    assert fast / slow == pytest.approx(4.0, rel=0.05)


def test_an_engine_that_says_nothing_of_its_error_is_believed() -> None:
    own = EngineSpeed(9_000.0)
    assert pooled_speed(own, [own, measured(50_000, 0.1)]) is own
    other = measured(50_000, 0.1)
    assert pooled_speed(other, [own, other]).tokens_per_second == pytest.approx(50_000)


def test_an_engine_alone_has_its_own_speed() -> None:
    own = measured(9_000, 1.0)
    assert pooled_speed(own, [own]).tokens_per_second == pytest.approx(9_000)


@given(own=SPEEDS, others=st.lists(SPEEDS, max_size=6))
def test_nothing_is_made_up(own: EngineSpeed, others: list[EngineSpeed]) -> None:
    """Check that results lie between slowest and fastest, and keep the order of equally certain ones."""
    fleet = [own, *others]
    told = [one.tokens_per_second for one in fleet]
    found = pooled_speed(own, fleet)
    assert min(told) * 0.999 <= found.tokens_per_second <= max(told) * 1.001
    assert (found.attention_ratio, found.decode_seconds, found.error) == (1e-6, 0.01, own.error)
    faster = measured(2 * own.tokens_per_second, own.error)
    assert pooled_speed(faster, fleet).tokens_per_second >= found.tokens_per_second * 0.999


def test_engines_of_another_model_are_no_measure() -> None:
    pool = pool_of(measured(50_000, 0.1), measured(50_000, 0.1))
    pool.set_targets([Target("http://e0", "e0"), Target("http://e1", "e1"), Target("http://big", "big")])
    pool.report("http://big", report(measured(5_000, 0.5), model="large"))
    assert pool.snapshot()[2].speed is not None
    assert pool.snapshot()[2].speed.tokens_per_second == pytest.approx(5_000)


def test_an_engine_with_a_slow_first_step_still_gets_its_share_of_new_beginnings() -> None:
    """Thought slow it would get nothing, measure nothing, and be thought slow for ever."""
    good = measured(50_000, 0.1)
    snapshot = pool_of(good, good, good, measured(9_000, 1.0)).snapshot()
    homes, chosen = [], []
    for key in range(200):
        request = RoutingRequest("m", prompt_tokens=2_000, home=key * 0x9E3779B97F4A7C15 % 2**64)
        found = choose(snapshot, request, Random(key))
        assert isinstance(found, RoutingDecision)
        homes.append(home_of(snapshot, request.home or 0).name)
        chosen.append(found.endpoint.name)
    assert chosen == homes
    assert chosen.count("e3") > 20
