"""Two pools: each is decided by its own engines, and what one pool lacks makes the other one no larger."""

import asyncio

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_api.choices import Role
from mamba_operator.autoscale.config import AutoscalerConfig
from mamba_operator.autoscale.decide import decide
from mamba_operator.autoscale.memory import AutoscalerMemory
from mamba_operator.autoscale.observation import GatewayTraffic, Observation
from pool_world import World
from scaled_fleet import load, seen

budget = settings(max_examples=10)
share = st.floats(0, 12, width=32)
rate = st.floats(0, 100, width=32)
configs = st.builds(
    lambda low, more, ttft, tpot: AutoscalerConfig(
        min_replicas=low, max_replicas=low + more, ttft_target=ttft, tpot_target=tpot
    ),
    st.integers(1, 4), st.integers(1, 12), st.none() | st.floats(0.1, 10), st.none() | st.floats(0.01, 1),
)  # fmt: skip
histories = st.lists(st.tuples(rate, share, share), max_size=8)


def observed(engines: int, requests: float, slots: float, pages: float, number: int) -> Observation:
    used = msgspec.structs.replace(load(engines, requests), slots_used=slots, pages_used=pages)
    return seen(engines, requests, at=10.0 * number, load=used)


def after(
    config: AutoscalerConfig, engines: int, history: list[tuple[float, float, float]]
) -> AutoscalerMemory:
    memory = AutoscalerMemory()
    for number, (requests, slots, pages) in enumerate(history):
        memory = decide(observed(engines, requests, slots, pages, number), config, memory).memory
    return memory


@budget
@given(configs, st.integers(1, 12), histories, rate, share, share)
def test_states_that_no_reader_has_room_for_never_ask_for_more_engines(
    config: AutoscalerConfig,
    engines: int,
    history: list[tuple[float, float, float]],
    requests: float,
    slots: float,
    pages: float,
) -> None:
    engines = min(max(engines, config.lowest), config.max_replicas)
    memory = after(config, engines, history)
    now = observed(engines, requests, slots, pages, len(history))
    full = decide(msgspec.structs.replace(now, readers_full=True), config, memory)
    empty = decide(observed(engines, requests, 0.0, 0.0, len(history)), config, memory)
    plain = decide(now, config, memory)

    assert full.target <= plain.target
    # Memory alone makes nothing grow then; work and queues still do.
    assert full.target <= max(engines, empty.target)


@budget
@given(configs, st.integers(1, 12), histories, share)
def test_states_that_wait_for_readers_keep_the_engines_that_hold_them(
    config: AutoscalerConfig, engines: int, history: list[tuple[float, float, float]], slots: float
) -> None:
    engines = min(max(engines, config.lowest), config.max_replicas)
    memory = after(config, engines, history)
    held = max(slots, 0.9 * engines)
    now = msgspec.structs.replace(observed(engines, 0.0, held, 0.0, len(history)), readers_full=True)

    assert decide(now, config, memory).target >= engines


def report(running: int, waiting: int, slots: float, tokens: int, room: int) -> str:
    return (
        f"mambaserve_requests_running {running}\nmambaserve_requests_waiting {waiting}\n"
        f"mambaserve_max_running_requests 64\nmambaserve_state_usage {slots}\n"
        f"mambaserve_prompt_tokens_waiting {tokens}\nmambaserve_prefill_tokens_per_second 9000\n"
        f"mambaserve_transfer_credits {room}\n"
    )


def reports(room: st.SearchStrategy[int]) -> st.SearchStrategy[list[str]]:
    one = st.builds(
        report, st.integers(0, 64), st.integers(0, 50), st.floats(0, 1), st.integers(0, 10_000_000), room
    )
    return st.lists(one, min_size=1, max_size=6)


@budget
@given(
    st.sampled_from(["prefill", "decode"]), reports(st.integers(1, 8)), reports(st.integers(1, 8)),
    reports(st.integers(1, 8)),
)  # fmt: skip
def test_what_the_engines_of_one_pool_report_never_moves_the_other_pool(
    pool: Role, own: list[str], one: list[str], another: list[str]
) -> None:
    """The engines of a pool alone decide it as long as decode engines have room for states."""
    other: Role = "decode" if pool == "prefill" else "prefill"

    async def decided(others: list[str]) -> list[tuple[int, str]]:
        world, targets = World(), []
        for number in range(max(len(own), len(one), len(another))):
            world.set(pool, own[min(number, len(own) - 1)])
            world.set(other, others[min(number, len(others) - 1)])
            made = (await world.decisions())[pool]
            targets.append((made.target, made.reason))
        return targets

    assert asyncio.run(decided(one)) == asyncio.run(decided(another))


@budget
@given(configs, st.integers(1, 12), st.lists(rate, min_size=4, max_size=40), st.floats(1, 5))
def test_requests_that_need_none_of_the_engines_ask_for_no_more_of_them(
    config: AutoscalerConfig, engines: int, loads: list[float], others: float
) -> None:
    """For each request that comes here, `others - 1` are served elsewhere, in time."""
    engines = min(max(engines, config.lowest), config.max_replicas)
    memories = [AutoscalerMemory(), AutoscalerMemory()]
    for number, requests in enumerate(loads):
        now = observed(engines, requests, 0.0, 0.0, number)
        now = msgspec.structs.replace(now, traffic=GatewayTraffic(arrivals=others * requests))
        alone, beside = (
            decide(now, msgspec.structs.replace(config, bypassed=bypassed), memory)
            for bypassed, memory in zip((False, True), memories, strict=True)
        )
        assert beside.target <= alone.target
        memories = [alone.memory, beside.memory]
