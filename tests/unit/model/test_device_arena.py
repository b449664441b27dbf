"""The arena's views: every layer's part of every slot and page lies in its own bytes of its own slab."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mamba_planner import Constraints, Device, MemoryPlan, plan
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.device_arena import DTYPES, DeviceArena
from mamba_server.model.layout import CacheLayout
from testmodels.checkpoints import SMALL

CPU = torch.device("cpu")


def model(**changes: Any) -> ModelConfig:
    return model_config_from_hf({**SMALL, "model_type": "nemotron_h", **changes})


def planned(config: ModelConfig, state_dtype: str, dtype: str) -> MemoryPlan:
    constraints = Constraints(
        arena_bytes=2 << 20, state_dtype=state_dtype, dtype=dtype, page_size=16, max_model_len=64
    )
    return plan(config, constraints, Device("cpu", 1 << 30))


def arena(config: ModelConfig, state_dtype: str = "float32", dtype: str = "float32") -> DeviceArena:
    return DeviceArena(CacheLayout.of(config, planned(config, state_dtype, dtype), dtype), CPU)


def spans(view: torch.Tensor, row: int, base: int) -> set[int]:
    """Return the bytes that one row of a view takes, counted from the start of the arena."""
    part = view[row]
    assert part.is_contiguous()
    begin = part.data_ptr() - base
    return set(range(begin, begin + part.numel() * part.element_size()))


shapes = st.fixed_dictionaries({
    "mamba_num_heads": st.sampled_from([2, 4, 8]),
    "mamba_head_dim": st.sampled_from([4, 12]),
    "ssm_state_size": st.sampled_from([4, 16]),
    "n_groups": st.sampled_from([1, 2]),
    "conv_kernel": st.sampled_from([2, 4]),
    "hybrid_override_pattern": st.sampled_from(["M-M*-M", "M", "MM*", "*M*M*"]),
    "num_key_value_heads": st.sampled_from([1, 2]),
})  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(shapes, st.sampled_from(["float32", "float16"]), st.sampled_from(["float32", "bfloat16"]))
def test_no_byte_belongs_to_two_and_every_slot_stays_in_its_slab(
    shape: dict[str, Any], state_dtype: str, dtype: str
) -> None:
    config = model(**shape)
    made = arena(config, state_dtype, dtype)
    layout, base = made.layout, made.memory.data_ptr()
    views = made.views(config, state_dtype, DTYPES[dtype])
    for slot in (1, layout.slabs - 1):
        parts = [spans(view, slot, base) for view in (*views.ssm, *views.conv)]
        taken = set().union(*parts)
        assert len(taken) == sum(map(len, parts))
        assert slot * layout.slab_bytes <= min(taken)
        assert max(taken) < (slot + 1) * layout.slab_bytes
    if views.kv:
        last = layout.slabs * layout.pages_per_slab - 1
        for page in (1, layout.pages_per_slab, last):
            parts = [spans(view, page, base) for view in views.kv]
            taken = set().union(*parts)
            assert len(taken) == sum(map(len, parts))
            assert max(taken) < layout.arena_bytes


def test_views_have_the_shapes_and_types_the_model_works_on() -> None:
    config = model()
    made = arena(config, "float16", "bfloat16")
    views = made.views(config, "float16", torch.bfloat16)
    slabs, pages = made.layout.slabs, made.layout.slabs * made.layout.pages_per_slab
    assert [tuple(view.shape) for view in views.ssm] == [(slabs, 8, 12, 16)] * 3
    assert [tuple(view.shape) for view in views.conv] == [(slabs, 3, 8 * 12 + 2 * 2 * 16)] * 3
    assert [tuple(view.shape) for view in views.kv] == [(pages, 2, 16, 2, 16)]
    assert {view.dtype for view in views.ssm} == {torch.float16}
    assert {view.dtype for view in (*views.conv, *views.kv)} == {torch.bfloat16}


def test_a_slot_and_the_pages_of_its_slab_are_the_same_memory_and_those_of_others_are_not() -> None:
    config = model()
    made = arena(config)
    views = made.views(config, "float32", torch.float32)
    for view in (*views.ssm, *views.conv):
        view[3] = 7.0
    per_slab = made.layout.pages_per_slab
    touched = {page for page in range(made.layout.slabs * per_slab) if bool(views.kv[0][page].any())}
    assert touched
    assert touched <= set(range(3 * per_slab, 4 * per_slab))


def test_an_arena_starts_zeroed_and_of_exactly_the_planned_size() -> None:
    config = model()
    made = arena(config)
    assert made.memory.numel() == made.layout.arena_bytes == planned(config, "float32", "float32").arena_bytes
    assert not bool(made.memory.any())


def test_a_model_without_attention_has_no_pages_and_one_view_a_layer() -> None:
    config = model(hybrid_override_pattern="M-M")
    made = arena(config)
    views = made.views(config, "float32", torch.float32)
    assert views.kv == []
    assert len(views.ssm) == len(views.conv) == 2


def test_a_state_of_an_odd_number_of_elements_never_reaches_into_its_neighbour() -> None:
    config = model(mamba_num_heads=3, mamba_head_dim=5, ssm_state_size=7, n_groups=1)
    made = arena(config, "float16", "bfloat16")
    views = made.views(config, "float16", torch.bfloat16)
    for number, view in enumerate((*views.ssm, *views.conv), 1):
        view[1] = number
    for number, view in enumerate((*views.ssm, *views.conv), 1):
        assert bool((view[1] == number).all())
    wide = arena(config, "float16", "float32")
    with pytest.raises(UnsupportedModel, match=r"210 bytes.*--state-dtype float32"):
        wide.views(config, "float16", torch.float32)
