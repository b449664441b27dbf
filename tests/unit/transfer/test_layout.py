"""The layout of an arena: what the engine's own byte layout says, in terms that travel."""

import pytest

from mamba_planner.arithmetic import kv_bytes_per_token, state_bytes
from mamba_planner.errors import UnusableInput
from mamba_planner.model_config import ModelConfig
from mamba_transfer import Segment, StateLayout, arena_buffers, bundle_bytes, page_segments, slot_segments
from transfer_models import PAGE_SIZE, delta_model, layout_of, mamba_model, window_model

MODELS = [mamba_model(2, 2), delta_model(8, 1), window_model(2), mamba_model(1, 1, ("mamba", "mamba"))]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_sizes_are_those_of_the_memory_plan(model: ModelConfig, ranks: int) -> None:
    for rank in range(ranks):
        layout = layout_of(model, rank, ranks)
        assert layout.state_bytes == state_bytes(model, "float32", "bfloat16", ranks).total
        assert layout.page_bytes == PAGE_SIZE * kv_bytes_per_token(model, "bfloat16", ranks)


def test_a_split_that_the_planner_refuses_is_refused_here() -> None:
    with pytest.raises(UnusableInput):
        layout_of(mamba_model(2, 2), 0, 3)


def test_adjacent_pages_are_one_segment_and_others_keep_the_order_of_their_tokens() -> None:
    layout = layout_of(mamba_model(2, 2))
    size = layout.page_bytes
    assert page_segments(layout, [7, 8, 9, 3, 2]) == [
        Segment(7 * size, 3 * size),
        Segment(3 * size, size),
        Segment(2 * size, size),
    ]
    assert page_segments(layout, []) == []


def test_a_model_without_attention_has_no_bytes_in_its_pages() -> None:
    layout = layout_of(mamba_model(1, 1, ("mamba", "mamba")))
    assert page_segments(layout, [1, 2, 3]) == []
    assert bundle_bytes(layout, 100) == layout.state_bytes


def test_buffers_are_the_memory_of_the_arena_itself() -> None:
    layout = layout_of(mamba_model(2, 2))
    arena = bytearray(8 * layout.slab_bytes)
    state, pages = arena_buffers(memoryview(arena), layout, 2, [1, 2])
    state[0], pages[-1] = 5, 6
    assert slot_segments(layout, 2) == [Segment(2 * layout.slab_bytes, layout.state_bytes)]
    assert (arena[2 * layout.slab_bytes], arena[3 * layout.page_bytes - 1]) == (5, 6)


def test_layouts_of_equal_engines_are_equal_and_refuse_nothing() -> None:
    for model in MODELS:
        assert layout_of(model) == layout_of(model)
        assert layout_of(model).refusal(layout_of(model, 3, 4)) is None
        assert isinstance(layout_of(model).at(3, 4), StateLayout)
        assert layout_of(model).at(3, 4) == layout_of(model, 3, 4)
