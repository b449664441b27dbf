"""Engines that hold their matrices as int8."""

import gc
from pathlib import Path
from typing import Any

import pytest

import mamba_server
from mamba_kernels.cpu.library import library
from mamba_kernels.cpu.quantized_weight import PANEL, QuantizedWeight
from mamba_kernels.dispatch.backend import TORCH
from mamba_planner.engine_settings import EngineSettings
from mamba_server.engine.boot import Engine, boot
from mamba_server.model.errors import UnsupportedModel
from mamba_server.model.layers import hybrid

TINY = Path(mamba_server.__file__).parent / "builtin" / "tiny-recall"


def start(**settings: Any) -> Engine:
    given = {"model": str(TINY), "device": "cpu", "arena_bytes": 8 << 20, "overlap": False, **settings}
    return boot(EngineSettings(**given), lambda *_: None)


def quantized() -> list[QuantizedWeight]:
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is QuantizedWeight]


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_what_is_held_is_what_was_planned() -> None:
    before = quantized()
    whole, small = start(dtype="float32"), start(dtype="float32", quantization="int8")
    made = [each for each in quantized() if not any(each is other for other in before)]
    elements = sum(each.outputs * each.inputs for each in made)
    saved = whole.plan.weights_bytes - small.plan.weights_bytes
    assert saved == elements * 4 - elements * 34 // 32
    padded = sum(-each.outputs % PANEL * each.inputs for each in made)
    assert sum(each.panels.nbytes for each in made) == (elements + padded) * 34 // 32


@pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")
def test_states_computed_with_other_matrices_are_never_taken_for_each_other() -> None:
    prints = [
        start(dtype="float32", quantization=each).core.cache.tree.fingerprint for each in ("none", "int8")
    ]
    assert len(set(prints)) == 2


def test_without_the_kernels_it_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hybrid, "backend_for", lambda device, dtype: TORCH)
    with pytest.raises(UnsupportedModel, match=r"int8 needs the C\+\+ kernels.*--quantization none"):
        start(quantization="int8")


def test_a_type_without_kernels_is_refused_too() -> None:
    with pytest.raises(UnsupportedModel, match="float16"):
        start(quantization="int8", dtype="float16")
