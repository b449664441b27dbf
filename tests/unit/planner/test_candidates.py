"""Estimate of one strategy for a budget: exact at the edge of fitting, and honest about its remainder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mamba_api.choices import Strategy
from mamba_planner import Constraints, Device, MemoryBudget, UnusableInput, Workload
from mamba_planner.candidates import (
    Candidate,
    SlabGeometry,
    evaluate,
    slab_geometry,
)
from mamba_planner.families import model_config_from_hf
from mamba_planner.memory import CPU_ARENA_PART
from mamba_planner.model_config import ModelConfig
from mamba_planner.strategy import STRATEGIES, reservation

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"
GIB = 1 << 30


def model(name: str) -> ModelConfig:
    return model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))


SMALL = model("granite-4.0-h-350m")
PURE = model("mamba2-2.7b")
SHAPE = slab_geometry(SMALL, Constraints(), "float32")


def candidate(
    slabs: int, strategy: Strategy = "NoBuffer", *, of: ModelConfig = SMALL, workload: Workload | None = None,
    **fixed: Any,
) -> Candidate:  # fmt: skip
    """Return a candidate over an arena of exactly `slabs` slabs."""
    constraints = Constraints(arena_bytes=slabs * slab_geometry(of, Constraints(), "float32").slab, **fixed)
    budget = MemoryBudget.of(of, constraints, Device("cuda", 0))
    return evaluate(of, constraints, budget, workload or Workload(64, 64), strategy, "float32")


def slots_per_sequence(strategy: Strategy) -> int:
    return reservation(strategy, overlap=True).slots_per_sequence


# --- the edge of fitting -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_arena_for_exactly_one_sequence_runs_one_and_one_slab_less_runs_none(strategy: Strategy) -> None:
    tokens = 5 * SHAPE.pages_per_slab * SHAPE.page_size
    needed = 1 + slots_per_sequence(strategy) + 5
    fits = candidate(needed, strategy, max_model_len=tokens, workload=Workload(tokens - 1, 1))
    assert (fits.misfit, fits.running, fits.max_model_len) == ("", 1, tokens)
    short = candidate(needed - 1, strategy, max_model_len=tokens)
    assert (short.running, short.planned, short.need) == (0, 0, needed * SHAPE.slab)
    assert f"one sequence of {tokens} tokens needs {slots_per_sequence(strategy)} slots" in short.misfit
    over = candidate(needed, strategy, max_model_len=tokens + 1)
    assert over.need == (needed + 1) * SHAPE.slab


def test_a_misfit_names_the_size_that_would_do() -> None:
    short = candidate(4, "ExtraBuffer", max_model_len=10_000)
    enough = candidate(short.need // SHAPE.slab, "ExtraBuffer", max_model_len=10_000)
    assert short.misfit
    assert not enough.misfit
    assert all(part in short.misfit for part in ("625 pages", "127.9Mi", "85.2Mi"))


def test_without_a_wanted_length_the_longest_that_fits_is_offered_and_no_token_more() -> None:
    found = candidate(9, "ExtraBuffer")
    assert found.max_model_len == (8 - 3) * SHAPE.pages_per_slab * SHAPE.page_size < SMALL.max_position
    assert not candidate(9, "ExtraBuffer", max_model_len=found.max_model_len).misfit
    assert candidate(9, "ExtraBuffer", max_model_len=found.max_model_len + 1).misfit


def test_the_models_own_limit_is_not_raised_by_a_large_arena() -> None:
    assert candidate(4000).max_model_len == SMALL.max_position


def test_a_pure_recurrent_model_runs_by_slots_at_any_length() -> None:
    for tokens in (2, 500_000):
        found = candidate(10, "ExtraBuffer", of=PURE, max_model_len=tokens)
        assert (found.running, found.max_model_len, found.shape.pages_per_slab) == (3, tokens, 0)
    assert candidate(3, "ExtraBuffer", of=PURE, max_model_len=2).misfit


# --- concurrency and cache -----------------------------------------------------------------------------


def test_a_declared_concurrency_is_planned_as_far_as_it_fits() -> None:
    wanted = Workload(64, 64, 0.3, 4, declared=True)
    assert candidate(200, workload=wanted).planned == 4
    few = candidate(4, workload=wanted)
    assert 1 <= few.planned == few.running < 4


def test_a_configured_limit_holds_although_more_would_fit() -> None:
    found = candidate(200, max_running_requests=3)
    assert found.running == 3 < found.fits


def test_what_is_planned_and_what_is_cached_fit_the_arena_together() -> None:
    for slabs in (8, 30, 200):
        for strategy in STRATEGIES:
            found = candidate(slabs, strategy, workload=Workload(700, 100, 0.5))
            if found.misfit:
                continue
            running = SHAPE.slabs(found.planned, found.slots_each, found.workload.tokens)
            cached = SHAPE.slabs(found.cached_paths, 1, found.workload.tokens)
            assert running + cached <= slabs - 1
            # Not one path more would fit.
            assert running + SHAPE.slabs(found.cached_paths + 1, 1, found.workload.tokens) > slabs - 1
            assert found.checkpoints == found.cached_paths


def test_without_prefix_caching_nothing_is_set_aside_for_it() -> None:
    few = Workload(64, 64, 0.3, 2, declared=True)
    assert candidate(200, "ExtraBuffer", workload=few).cached_paths > 0
    found = candidate(200, "ExtraBuffer", workload=few, prefix_caching=False)
    assert (found.cached_paths, found.saved) == (0, 0.0)


def test_overlap_costs_a_slot_of_each_sequence_with_a_ping_pong_buffer() -> None:
    with_overlap, without = (candidate(200, "ExtraBuffer", overlap=on) for on in (True, False))
    assert (with_overlap.slots_each, without.slots_each) == (3, 2)
    assert without.fits > with_overlap.fits


# --- the arena of a machine without a GPU --------------------------------------------------------------


def on_cpu(memory: int, **fixed: Any) -> Candidate:
    constraints = Constraints(**fixed)
    budget = MemoryBudget.of(SMALL, constraints, Device("cpu", memory, declared=False))
    return evaluate(SMALL, constraints, budget, Workload(64, 64), "NoBuffer", "float32")


def test_a_machine_gives_the_arena_a_part_of_what_is_free() -> None:
    budget = MemoryBudget.of(SMALL, Constraints(), Device("cpu", 8 * GIB, declared=False))
    assert on_cpu(8 * GIB).slabs == budget.arena // SHAPE.slab // CPU_ARENA_PART


def test_a_sequence_longer_than_the_limit_still_gets_the_arena_it_needs() -> None:
    wide = model("falcon-h1-7b")
    constraints = Constraints(max_model_len=100_000)
    budget = MemoryBudget.of(wide, constraints, Device("cpu", 30 * GIB, declared=False))
    found = evaluate(wide, constraints, budget, Workload(64, 64), "NoBuffer", "float32")
    assert not found.misfit
    assert found.slabs * found.shape.slab > budget.arena // CPU_ARENA_PART
    assert found.slabs == 1 + found.shape.slabs(1, 1, 100_000)


def test_few_short_sequences_take_no_more_than_they_could_ever_use() -> None:
    found = on_cpu(
        64 * GIB, max_running_requests=1, max_model_len=SHAPE.page_size, max_checkpoints_per_path=2
    )
    # The padding; one live slot and a page; two cached paths of two checkpoints, whose pages share a slab.
    assert found.slabs == 1 + 2 + 5


# --- shapes --------------------------------------------------------------------------------------------


def test_a_shape_that_does_not_divide_among_devices_is_refused() -> None:
    with pytest.raises(UnusableInput, match="tensorParallel 5"):
        slab_geometry(SMALL, Constraints(tensor_parallel=5), "float32")


@pytest.mark.parametrize("page_size", [1, 16, 1024])
def test_a_slab_holds_one_state_and_whole_pages(page_size: int) -> None:
    shape = slab_geometry(SMALL, Constraints(page_size=page_size, track_interval=page_size), "float32")
    assert shape.slab >= shape.state
    assert shape.slab % shape.page == 0
    assert shape.slab - shape.state < shape.page
    assert shape.page == page_size * shape.kv


@given(st.integers(0, 300), st.integers(1, 5), st.integers(1, 3000), st.integers(0, 300))
def test_more_slabs_never_hold_fewer_sequences(slabs: int, slots: int, tokens: int, more: int) -> None:
    for shape in (SHAPE, replace(SHAPE, kv=0, page=0)):
        assert shape.most(slabs, slots, tokens) <= shape.most(slabs + more, slots, tokens)


def test_an_arena_that_is_less_than_its_padding_holds_nothing() -> None:
    shape = SlabGeometry(1000, 16, 16, 256, 1024)
    assert [shape.most(slabs, 1, 10) for slabs in (-5, -1, 0)] == [0, 0, 0]
