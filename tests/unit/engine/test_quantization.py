"""Engines that hold their matrices as int8, as int4 or as FP8."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import mamba_server
from living_objects import living
from mamba_kernels.cpu.library import library
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from mamba_kernels.cpu.quantized.int8_weight import PANEL, QuantizedWeight
from mamba_kernels.dispatch.backend import TORCH
from mamba_server.engine.boot import Engine, boot
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.layers import hybrid
from mamba_settings.engine_settings import EngineSettings
from testmodels.checkpoints import random_granite, random_qwen3_next

pytestmark = pytest.mark.slow

TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


def start(**settings: Any) -> Engine:
    given = {"model": str(TINY), "device": "cpu", "arena_bytes": 8 << 20, "overlap": False, **settings}
    return boot(EngineSettings(**given), lambda *_: None)


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_what_is_held_is_what_was_planned() -> None:
    before = living(QuantizedWeight, Int4Weight)
    whole, small = start(dtype="float32"), start(dtype="float32", quantization="int8")
    made = living(QuantizedWeight, Int4Weight, besides=before)
    elements = sum(each.outputs * each.inputs for each in made)
    saved = whole.plan.weights_bytes - small.plan.weights_bytes
    assert saved == elements * 4 - elements * 34 // 32
    padded = sum(-each.outputs % PANEL * each.inputs for each in made)
    assert sum(each.panels.nbytes for each in made) == (elements + padded) * 34 // 32


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_experts_of_one_tensor_are_planned_as_they_are_held(tmp_path: Path) -> None:
    """Exclude the routers, a hundredth of these models, which the plan counts as int8 instead of float32."""
    stacked = random_granite(tmp_path / "stacked", num_local_experts=8, num_experts_per_tok=3)
    before = living(QuantizedWeight, Int4Weight)
    whole, small = (start(model=str(stacked), quantization=each) for each in ("none", "int8"))
    made = living(QuantizedWeight, Int4Weight, besides=before)
    held = sum(each.outputs * each.inputs for each in made)
    saved = whole.plan.weights_bytes - small.plan.weights_bytes
    assert saved == pytest.approx(held * (4 - 34 / 32), rel=0.02)


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_matrices_of_four_bits_are_held_as_they_were_planned(tmp_path: Path) -> None:
    """Exclude the routers, as above; few weights make their share larger."""
    apart = random_qwen3_next(tmp_path / "apart")
    for model, near in ((str(TINY), 0.001), (str(apart), 0.02)):
        before = living(QuantizedWeight, Int4Weight)
        whole, small = (start(model=model, dtype="float32", quantization=each) for each in ("none", "int4"))
        kept = living(QuantizedWeight, Int4Weight, besides=before)
        assert {type(each) for each in kept} == {QuantizedWeight, Int4Weight}
        bits = {QuantizedWeight: 34, Int4Weight: 18}
        held = sum(each.outputs * each.inputs * (4 - bits[type(each)] / 32) for each in kept)
        saved = whole.plan.weights_bytes - small.plan.weights_bytes
        assert saved == pytest.approx(held, rel=near)


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_states_computed_with_other_matrices_are_never_taken_for_each_other() -> None:
    prints = [
        start(dtype="float32", quantization=each).core.cache.tree.fingerprint
        for each in ("none", "int8", "int4", "fp8")
    ]
    assert len(set(prints)) == 4


def test_fp8_is_held_as_it_was_planned_and_computed_by_torch_on_a_cpu() -> None:
    whole, small = (start(dtype="bfloat16", quantization=each) for each in ("none", "fp8"))
    assert small.kernels.name == TORCH.name
    assert 0.5 < small.plan.weights_bytes / whole.plan.weights_bytes < 0.75


def test_fp8_and_batch_invariant_mode_are_refused_together() -> None:
    with pytest.raises(ValidationError, match="fp8 and batch_invariant exclude each other"):
        start(quantization="fp8", batch_invariant=True)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_without_the_kernels_it_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    monkeypatch.setattr(hybrid, "backend_for", lambda device, dtype: TORCH)
    with pytest.raises(UnsupportedModel, match=rf"{quantization}.*--quantization none"):
        start(quantization=quantization)


def test_a_type_without_kernels_is_refused_too() -> None:
    with pytest.raises(UnsupportedModel, match="float16"):
        start(quantization="int8", dtype="float16")
