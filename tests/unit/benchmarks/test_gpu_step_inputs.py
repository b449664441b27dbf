"""Steps that the GPU measurement computes are steps that an engine could have."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from benchmarks.gpu.models import FAMILIES, published, shortened
from benchmarks.gpu.stages.correct import operators_of, shapes
from benchmarks.gpu.step_inputs import CHUNK, PAGE, StepArena, StepShape

from mamba_kernels.dispatch.operators import REFERENCE

CPU = torch.device("cpu")
STEPS = [*shapes(small=True).values(), *shapes(small=False).values()]


def arena(name: str, steps: list[StepShape], spare_slabs: int = 0) -> StepArena:
    config = shortened(published(name, small=True), 1)
    return StepArena(
        config, steps, dtype="bfloat16", state_dtype="float32", device=CPU, spare_slabs=spare_slabs
    )


@pytest.mark.parametrize("shape", STEPS)
def test_the_integers_of_a_step_do_not_contradict_each_other(shape: StepShape) -> None:
    batch, table = arena(FAMILIES[0], [shape]).host_batch(shape)
    batch.check(CHUNK, PAGE, table)


def _places(shape: StepShape) -> Iterator[tuple[str, np.ndarray]]:
    batch, table = arena(FAMILIES[0], [shape]).host_batch(shape)
    resumed = batch.slot_in[len(shape.decodes) :]
    named = [batch.slot_out, batch.decode_track, batch.chunk_track, resumed]
    yield "slots", np.concatenate([slots[slots >= 0] for slots in named])
    counts = -(-batch.context_len // PAGE)
    yield "pages", np.concatenate([table[row, :count] for row, count in enumerate(counts.tolist())])


@pytest.mark.parametrize("shape", STEPS)
def test_no_slot_and_no_page_has_two_owners(shape: StepShape) -> None:
    for what, places in _places(shape):
        assert len(set(places.tolist())) == len(places), what
        assert (places > 0).all(), f"{what}: the padding is nobody's"


def test_what_no_step_names_holds_no_number() -> None:
    shape, spare = StepShape((3, 40), tracked=1), 3
    built = arena(FAMILIES[0], [shape], spare_slabs=spare)
    batch, table = built.host_batch(shape)
    named = {*batch.slot_out.tolist(), *batch.decode_track.tolist()}
    named |= set((table[table > 0] // built.layout.pages_per_slab).tolist())
    (view,) = built.views.ssm
    unnamed = set(range(len(view))) - named
    assert len(unnamed) == 1 + spare
    assert not view[sorted(unnamed)].isfinite().any()
    assert view[batch.slot_out.tolist()].isfinite().all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_shortened_model_has_every_kind_of_block(name: str) -> None:
    whole = published(name)
    short = shortened(whole, 2)
    assert set(short.layers) == set(whole.layers)
    assert len(short.checkpoint_layers) == len(short.layers)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_operators_of_a_step_are_operators(name: str) -> None:
    for step in ("decodes", "prompts", "both"):
        for operator in operators_of(name, step):
            assert callable(getattr(REFERENCE, operator))
