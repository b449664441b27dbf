"""Byte layout: nothing overlaps, nothing overflows."""

import itertools
import json
from pathlib import Path

import pytest

from mamba_planner import Constraints, Device, MemoryPlan, StateDtype, plan
from mamba_planner.families import model_config_from_hf
from mamba_planner.model_config import ModelConfig
from mamba_server.model.layout import CacheLayout

CONFIGS = Path(__file__).parents[2] / "golden" / "configs"


def layout(slabs: int = 3, **changes: int) -> CacheLayout:
    sizes = {
        "recurrent_layers": 3, "ssm_bytes": 4096, "conv_bytes": 72, "attention_layers": 2,
        "page_layer_bytes": 1024, "page_size": 4, "slab_bytes": 14336, "slabs": slabs, **changes,
    }  # fmt: skip
    return CacheLayout(**sizes)


def test_the_parts_of_a_state_lie_side_by_side_within_a_slab() -> None:
    made = layout()
    spans = [(made.ssm_offset(i), made.ssm_offset(i) + made.ssm_bytes) for i in range(3)]
    spans += [(made.conv_offset(i), made.conv_offset(i) + made.conv_bytes) for i in range(3)]
    assert spans[0][0] == 0
    assert all(end == begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= made.slab_bytes


def test_a_slab_holds_whole_pages_only() -> None:
    assert layout().pages_per_slab == 7
    assert layout(slab_bytes=15000).pages_per_slab == 7


def test_a_pure_recurrent_model_has_no_pages() -> None:
    made = layout(attention_layers=0, page_layer_bytes=0)
    assert (made.page_bytes, made.pages_per_slab) == (0, 0)


def test_an_arena_beyond_two_gigabytes_is_addressed_in_full() -> None:
    made = layout(slabs=2_000_000)
    last = (made.slabs - 1) * made.slab_bytes + made.conv_offset(2)
    assert made.arena_bytes == 28_672_000_000
    assert last > 2**31
    assert 0 < made.arena_bytes - last < made.slab_bytes


# --- of a plan -----------------------------------------------------------------------------------------

NAMES = [path.stem for path in CONFIGS.glob("*.json")]


def planned(
    name: str, state_dtype: StateDtype, page_size: int
) -> tuple[ModelConfig, MemoryPlan, CacheLayout]:
    model = model_config_from_hf(json.loads((CONFIGS / f"{name}.json").read_text()))
    fixed = Constraints(
        state_dtype=state_dtype, page_size=page_size, track_interval=1024, arena_bytes=8 << 30
    )
    made = plan(model, fixed, Device("cuda", 0))
    return model, made, CacheLayout.of(model, made, model.dtype)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("state_dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_layout_of_a_plan_has_the_sizes_that_were_planned(
    name: str, state_dtype: StateDtype, page_size: int
) -> None:
    model, made, of_plan = planned(name, state_dtype, page_size)
    last = of_plan.recurrent_layers - 1
    assert of_plan.conv_offset(last) + of_plan.conv_bytes == made.state_bytes <= of_plan.slab_bytes
    assert of_plan.page_bytes == made.page_bytes == made.kv_bytes_per_token * page_size
    assert of_plan.pages_per_slab == made.pages_per_slab
    assert of_plan.pages_per_slab * of_plan.page_bytes in (0, of_plan.slab_bytes)
    assert (of_plan.arena_bytes, of_plan.slabs) == (made.arena_bytes, made.slabs)
    assert (of_plan.recurrent_layers, of_plan.attention_layers) == (
        model.recurrent_layers, model.attention_layers,
    )  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_a_state_begins_where_its_type_may_be_read(name: str) -> None:
    _, _, of_plan = planned(name, "float32", 16)
    for layer in range(of_plan.recurrent_layers):
        assert of_plan.ssm_offset(layer) % 16 == 0
        assert of_plan.conv_offset(layer) % 2 == 0
    assert of_plan.slab_bytes % 16 == 0
