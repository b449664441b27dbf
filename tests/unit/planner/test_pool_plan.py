"""Plans of engines of a pool: what is received and handed over has its slots, and too little is raised."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.choices import Role, Strategy
from mamba_api.v1alpha1 import PlanStatus
from mamba_planner import Constraints, Device, InsufficientMemory, MemoryPlan, Workload, plan, plan_engine
from mamba_planner.candidates import RoleDemand, SlabGeometry, slab_geometry
from mamba_planner.constraints import StateDtype
from mamba_planner.engine_plan import pool_state_dtype
from mamba_planner.families import model_config_from_hf
from mamba_planner.strategy import STRATEGIES, reservation
from mamba_settings.engine_settings import EngineSettings
from mamba_tier.bundle_shape import STAGING_BYTES

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
SMALL = model_config_from_hf(json.loads((CONFIGS / "granite-4.0-h-350m.json").read_text()))
SHAPE: SlabGeometry = slab_geometry(SMALL, Constraints(), "float32")
CHAT = Workload(2000, 500, 0.5, 8, declared=True)
GIB = 1 << 30
POOLS: tuple[Role, ...] = ("prefill", "decode")


def need(role: Role, strategy: Strategy, running: int, traffic: Workload = CHAT) -> int:
    """Return the slabs of an arena for `running` sequences, padding included, by the rule in words."""
    slots = reservation(strategy, overlap=True).slots_per_sequence
    if role == "decode":
        sequences = running + -(-running // 8)
        held, tokens = sequences * slots, traffic.tokens
    else:
        sequences = 2 * running
        held, tokens = running * slots + running, traffic.prompt_tokens + 1
    pages = sequences * -(-tokens // SHAPE.page_size)
    return 1 + held + -(-pages // SHAPE.pages_per_slab)


def planned(role: Role, strategy: Strategy, slabs: int, **more: Any) -> MemoryPlan:
    constraints = Constraints(
        role=role, strategy=strategy, state_dtype="float32", arena_bytes=slabs * SHAPE.slab, **more
    )
    return plan(SMALL, constraints, Device("cuda", 0), workload=CHAT)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("role", POOLS)
def test_one_slot_below_the_need_of_a_pool_is_raised_and_its_pages_are_planned_again(
    role: Role, strategy: Strategy
) -> None:
    enough = need(role, strategy, 8)
    exact, short = planned(role, strategy, enough), planned(role, strategy, enough - 1)

    assert exact.raised is None
    assert (exact.slabs, exact.planned_running) == (enough, 8)
    assert short.raised is not None
    assert (short.raised.configured, short.raised.arena) == ((enough - 1) * SHAPE.slab, enough * SHAPE.slab)
    assert short.raised.needed == short.raised.held + 1
    assert (short.slabs, short.slots, short.pages) == (exact.slabs, exact.slots, exact.pages)
    assert short.pages == short.raised.pages
    assert sum(line.bytes for line in short.ledger) == short.budget_bytes


@pytest.mark.parametrize("role", POOLS)
def test_a_raise_is_shown_with_its_numbers(role: Role) -> None:
    short = planned(role, "ExtraBuffer", need(role, "ExtraBuffer", 8) - 1)
    status = PlanStatus.model_validate(short.to_status(), by_alias=True, by_name=False)

    assert status.raised in short.notes
    for number in (str(short.raised.needed), f"{short.arena_bytes:,}"):  # type: ignore[union-attr]
        assert number in str(status.raised)
    assert (status.receiving, status.exported) == ((1, None) if role == "decode" else (None, 8))


def test_a_configured_number_of_sequences_is_held_too() -> None:
    slots = planned("decode", "NoBuffer", 4, max_running_requests=16)
    assert slots.max_running_requests >= 8
    alone = plan(
        SMALL,
        Constraints(role="decode", strategy="NoBuffer", arena_bytes=4 * SHAPE.slab, max_running_requests=16),
        Device("cuda", 0),
        workload=replace(CHAT, concurrency=None),
    )
    assert alone.slabs == need("decode", "NoBuffer", 16)


def test_a_unified_engine_keeps_the_arena_that_was_configured() -> None:
    assert planned("unified", "NoBuffer", 12).raised is None
    assert planned("unified", "NoBuffer", 12).slabs == 12


def test_a_raise_takes_no_more_memory_than_the_device_has() -> None:
    constraints = Constraints(role="decode", strategy="NoBuffer", arena_bytes=4 * SHAPE.slab)
    card = Device("cuda", 6 * GIB)
    raised = plan(SMALL, constraints, card, workload=replace(CHAT, concurrency=1000))

    assert raised.budget_bytes <= 6 * GIB
    assert 0 < raised.max_running_requests < 1000


def test_a_machine_without_room_for_the_raise_is_refused_with_the_numbers() -> None:
    constraints = Constraints(role="decode", strategy="NoBuffer", arena_bytes=2 * SHAPE.slab)
    with pytest.raises(InsufficientMemory, match="main memory"):
        plan(SMALL, constraints, Device("cpu", GIB // 4, declared=False), workload=CHAT)


@given(
    st.sampled_from(["prefill", "decode"]),
    st.integers(1, 3),
    st.integers(0, 400),
    st.integers(1, 5000),
)
def test_the_most_that_run_fit_and_one_more_does_not(role: Role, slots: int, slabs: int, tokens: int) -> None:
    demand = RoleDemand(role, slots)
    most = demand.most(SHAPE, slabs, tokens)

    assert most == 0 or demand.slabs(SHAPE, most, tokens) <= slabs
    assert demand.slabs(SHAPE, most + 1, tokens) > slabs


def test_each_pool_is_planned_for_its_own_traffic() -> None:
    def of(role: Role, **more: Any) -> MemoryPlan:
        settings = EngineSettings(
            model="x", role=role, transfer_port=0, device_memory=8 * GIB,
            workload_prompt_tokens=2000, workload_output_tokens=500, **more,
        )  # fmt: skip
        return plan_engine(SMALL, settings, Device("cuda", 8 * GIB))

    assert of("prefill").workload.tokens == 2001
    assert of("decode").workload.tokens == 2500
    assert of("decode", workload_concurrency=16).planned_running == 16
    assert of("decode", workload_shared_prefix_ratio=0.9).expected_saved > of("decode").expected_saved


def test_lower_tiers_are_planned_to_the_byte_with_the_states_that_they_hold() -> None:
    settings = EngineSettings(
        model="x", host_memory=3 * GIB, disk_cache="/d", disk_cache_bytes=10 * GIB + 1,
        workload_prompt_tokens=2000, workload_output_tokens=500,
    )  # fmt: skip
    result = plan_engine(SMALL, settings, Device("cuda", 8 * GIB))
    bundle = result.state_bytes + -(-2500 // 16) * result.page_bytes

    assert result.to_status()["tiers"] == [
        {"tier": "hostMemory", "bytes": 3 * GIB, "states": 3 * GIB // bundle},
        {"tier": "disk", "bytes": 10 * GIB + 1, "states": (10 * GIB + 1) // bundle},
    ]


def test_on_a_machine_without_a_gpu_host_memory_for_states_leaves_less_for_the_arena() -> None:
    here = Device("cpu", 4 * GIB, declared=False)
    without = plan(SMALL, Constraints(), here)
    with_tier = plan(SMALL, Constraints(host_memory=2 * GIB), here)

    taken = 2 * GIB + STAGING_BYTES
    assert with_tier.budget_bytes == pytest.approx(without.budget_bytes - taken * 0.9, abs=1)
    with pytest.raises(InsufficientMemory, match="of host memory for states"):
        plan(SMALL, Constraints(host_memory=4 * GIB), here)


@pytest.mark.parametrize(
    ("prefill_fits", "decode", "both"),
    [
        (("float32", "float16"), "float32", "float32"),
        (("float16",), "float32", "float16"),
        (("float16",), "float16", "float16"),
        ((), "float32", "float32"),
        (("float32",), None, None),
    ],
)
def test_both_pools_hold_states_of_one_type(
    prefill_fits: tuple[StateDtype, ...], decode: StateDtype | None, both: StateDtype | None
) -> None:
    def result(role: Role, state_dtype: StateDtype | None) -> StateDtype | None:
        if role == "decode":
            return decode if state_dtype is None else state_dtype
        return state_dtype if state_dtype in prefill_fits else None

    assert pool_state_dtype(result) == both
