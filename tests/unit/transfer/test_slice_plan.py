"""Slice plans: whatever the two numbers of ranks, each destination gets exactly its own bytes."""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from mamba_planner.model_config import ModelConfig
from mamba_transfer import IncompatibleLayouts, SlicePlan, StateLayout, checksum, plan_of_pair
from mamba_transfer.bundle import pieces
from transfer_models import (
    WholeState,
    delta_model,
    gather,
    layout_of,
    mamba_model,
    random_state,
    same,
    scatter,
    window_model,
)

RANKS = (1, 2, 4, 8)
PAGES = 3
Make = Callable[[int, int], ModelConfig]


def moved(model: ModelConfig, state: WholeState, sources: int, destinations: int) -> list[list[bytearray]]:
    """Return the bundles of all destinations after each has read what its plan says from each source."""
    memory = [scatter(state, rank, sources) for rank in range(sources)]
    landed = []
    for rank in range(destinations):
        here = layout_of(model, rank, destinations)
        target = [bytearray(here.state_bytes), bytearray(PAGES * here.page_bytes)]
        counts = [bytearray(len(buffer)) for buffer in target]
        plan = plan_of_pair(layout_of(model, 0, sources), here)
        for source, portion in plan.portions.items():
            there = layout_of(model, source, sources)
            out = pieces(portion, "source", there, [memoryview(each) for each in memory[source]])
            into = pieces(portion, "destination", here, [memoryview(each) for each in target])
            marks = pieces(portion, "destination", here, [memoryview(each) for each in counts])
            stream = b"".join(out)
            assert sum(portion.sizes(PAGES)) == len(stream)
            start = 0
            for piece, mark in zip(into, marks, strict=True):
                piece[:] = stream[start : start + piece.nbytes]
                mark[:] = bytes(number + 1 for number in mark)
                start += piece.nbytes
            assert checksum(out) == checksum(into)
        assert all(set(each) == {1} for each in counts), "a byte was not written exactly once"
        landed.append(target)
    return landed


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("make", [mamba_model, delta_model])
def test_a_state_survives_any_change_of_the_number_of_ranks(make: Make, groups: int, kv_heads: int) -> None:
    model = make(groups, kv_heads)
    state = random_state(model, PAGES, seed=groups * 16 + kv_heads)
    for sources in RANKS:
        for destinations in RANKS:
            landed = moved(model, state, sources, destinations)
            pair = f"{sources} to {destinations} ranks"
            assert same(gather(landed, model, PAGES), state), pair
            assert landed == [scatter(state, rank, destinations) for rank in range(destinations)], pair


def test_equal_layouts_give_one_copy_of_the_state_and_one_of_each_page() -> None:
    models = (mamba_model(2, 2), delta_model(8, 1), window_model(2))
    for model in (*models, *(replace(each, draft_head=True) for each in models)):
        layout = layout_of(model, 1, 2)
        (portion,) = plan_of_pair(layout, layout).portions.values()
        assert [tuple(copy) for copy in portion.state] == [(0, 0, layout.state_bytes)]
        assert [tuple(copy) for copy in portion.page] == [(0, 0, layout.page_bytes)]


def test_each_layer_of_the_state_and_each_page_has_a_checksum_of_its_own() -> None:
    model = mamba_model(2, 2)
    layout = layout_of(model)
    (portion,) = plan_of_pair(layout, layout).portions.values()
    sizes = portion.sizes(pages=5)
    assert len(sizes) == 2 * model.recurrent_layers + 5
    assert sum(sizes) == layout.state_bytes + 5 * layout.page_bytes


def test_replicas_are_read_from_the_rank_whose_heads_are_read_anyway() -> None:
    model = mamba_model(1, 1)
    for sources, rank, ranks, expected in (
        (4, 3, 4, {3}),
        (2, 3, 4, {1}),
        (8, 1, 4, {2, 3}),
        (4, 0, 1, set(range(4))),
    ):
        plan = plan_of_pair(layout_of(model, 0, sources), layout_of(model, rank, ranks))
        assert set(plan.portions) == expected


def broken(layout: StateLayout, name: str, **fields: object) -> StateLayout:
    parts = tuple(
        msgspec.structs.replace(part, **fields) if part.name == name else part for part in layout.parts
    )
    return msgspec.structs.replace(layout, parts=parts)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (layout_of(mamba_model(2, 2), state_dtype="bfloat16"), "state.dtype"),
        (layout_of(mamba_model(2, 2), dtype="float32"), "window.x.dtype"),
        (layout_of(mamba_model(2, 2), fingerprint="others"), "fingerprint"),
        (layout_of(mamba_model(2, 2), kv_cache_dtype="fp8_e4m3"), "parts"),
        (layout_of(mamba_model(1, 2)), "window.B.units"),
        (layout_of(mamba_model(2, 1)), "keys.units"),
        (layout_of(mamba_model(2, 2, ("mamba", "attention"))), "state.layers"),
        (layout_of(mamba_model(2, 2, ("mamba", "mamba"))), "parts"),
        (layout_of(delta_model(2, 2)), "parts"),
        (msgspec.structs.replace(layout_of(mamba_model(2, 2)), page_size=8), "page_size"),
        (msgspec.structs.replace(layout_of(mamba_model(2, 2)), rank=5), "rank"),
        (msgspec.structs.replace(layout_of(mamba_model(2, 2)), ranks=3), "state.units"),
        (broken(layout_of(mamba_model(2, 2), 1, 2), "window.B", first=0, last=1), "window.B.first"),
        (broken(layout_of(mamba_model(2, 2), 1, 4), "keys", replicas=1), "keys.replicas"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pair_that_does_not_fit_is_refused_with_the_name_of_the_field(
    other: StateLayout, field: str
) -> None:
    here = layout_of(mamba_model(2, 2))
    refusal = here.refusal(other)
    assert refusal is not None
    assert refusal.split(" ")[0] == field
    with pytest.raises(IncompatibleLayouts, match=field):
        plan_of_pair(other, here)


def test_sources_that_lack_a_part_are_refused_with_its_name() -> None:
    model = mamba_model(2, 2)
    ranks = [layout_of(model, rank, 4) for rank in range(4)]
    with pytest.raises(IncompatibleLayouts, match=r"state.*12 to 15"):
        SlicePlan(ranks[:3], layout_of(model))
    with pytest.raises(IncompatibleLayouts, match="rank"):
        SlicePlan([*ranks, ranks[0]], layout_of(model))
