"""The routing benchmark: every prompt is served once, and what gateways know saves work."""

import pytest
from benchmarks.cache.block_trace import generated
from benchmarks.cache.hit_rate import STATE_TOKENS
from benchmarks.routing import ALL
from benchmarks.routing_decision import HOLDERS, measure
from benchmarks.simulated_fleet import SimulatedFleet

from mamba_cli.fleet.cache_index import Knowledge
from mamba_cli.fleet.engine_profile import CacheSize
from mamba_cli.fleet.prompt_blocks import BLOCK
from mamba_cli.fleet.workload import TraceWorkload

WORKLOAD = TraceWorkload("small", BLOCK, generated(120, documents=4, depth=(4, 12)))
SIZE = CacheSize(30, 200_000, STATE_TOKENS)


def run(knowledge: Knowledge) -> tuple[SimulatedFleet, dict[str, float]]:
    fleet = SimulatedFleet(WORKLOAD, SIZE, engines=3, gateways=2, speed=5000.0, knowledge=knowledge)
    return fleet, fleet.run()


@pytest.mark.parametrize("knowledge", ALL)
def test_every_prompt_is_served_once_and_nothing_is_left_behind(knowledge: Knowledge) -> None:
    fleet, found = run(knowledge)
    assert len(fleet.first_tokens) == len(WORKLOAD.arrivals)
    assert found["prompt_tokens"] == sum(arrival.input_tokens for arrival in WORKLOAD.arrivals)
    assert found == run(knowledge)[1]
    for engine in fleet.engines.values():
        assert (engine.running, len(engine.queue)) == (0, 0)
    for pool in fleet.pools:
        assert {endpoint.in_flight for endpoint in pool.snapshot()} == {0}


def test_decisions_are_timed_for_prompts_that_engines_can_resume() -> None:
    found = measure(endpoints=6, entries=20_000, decisions=40)
    assert found["entries"] >= 20_000
    assert 1 < found["hits"] <= HOLDERS
    assert 0 < found["lookup"]["p50"] <= found["lookup"]["p99"]
    assert 0 < found["decision"]["p50"] <= found["decision"]["p99"]


def test_knowing_what_engines_can_resume_saves_a_good_part_of_what_load_alone_computes() -> None:
    by_load, by_prefix = run("load")[1], run("resumable")[1]
    assert by_prefix["computed"] < 0.9 * by_load["computed"]
    assert by_prefix["ttft_mean"] < by_load["ttft_mean"]
