"""Inputs of the bench fit the kernels, and the results equal the references'.

Tuning finds the fastest configuration that is correct.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mamba_kernels.bench import __main__ as bench
from mamba_kernels.bench.measurement import WrongResult, check
from mamba_kernels.bench.model_shape import MODEL_SHAPES, ModelShape
from mamba_kernels.bench.moe_and_delta_cases import moe_and_delta_cases
from mamba_kernels.bench.tuning import table, tune
from mamba_kernels.dispatch.kernel_or_reference import KernelOrReference
from mamba_kernels.dispatch.operators import triton_operators
from mamba_kernels.paged_attention import triton as paged_attention
from mamba_kernels.triton_support import launch_table

CPU = torch.device("cpu")
SMALL = ModelShape(H=2, P=16, N=16, G=1, d=24, heads=4, kv_heads=2, head_dim=16, vocabulary=300)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODEL_SHAPES, "small", SMALL)
    monkeypatch.setattr(paged_attention, "PROGRAMS", 4)


def test_every_case_is_right_and_no_reference_computes(caplog: pytest.LogCaptureFixture) -> None:
    cases = [*bench.cases_of("small", CPU, small=True), *moe_and_delta_cases(CPU, small=True)]
    for case in cases:
        check(replace(case, checked=min(case.checked, 80)), triton_operators())
    assert not caplog.messages


def test_the_quickest_right_configuration_is_found() -> None:
    (case, *_) = (
        each for each in bench.cases_of("small", CPU, small=True) if each.operator == "conv1d_update"
    )
    tried: list[int] = []

    def clock(run: Callable[[], object], _: torch.device) -> float:
        run()
        assert launch_table._trial is not None
        entry = next(iter(launch_table._trial.entries.values()), {})
        tried.append(entry.get("num_warps", 0))
        return 1.0 if entry.get("num_warps") == 4 and entry["blocks"]["C"] == 32 else 2.0

    entries = tune(case, triton_operators(), CPU, clock)
    ((kernel, shape), entry), *_ = entries.items()
    assert kernel == "conv1d_update"
    assert (entry["num_warps"], entry["blocks"]["C"]) == (4, 32)
    assert {1, 2, 4, 8} <= set(tried)
    assert table(entries, "a GPU") == {"conv1d_update": {"a GPU": {shape: entry}}}


def test_defaults_that_are_wrong_are_an_error() -> None:
    (case, *_) = (each for each in bench.cases_of("small", CPU, small=True) if each.operator == "rms_norm")
    right = triton_operators()
    wrong = KernelOrReference("rms_norm", lambda *given: right.rms_norm(*given) * 1.1, right.rms_norm)
    with pytest.raises(WrongResult):
        tune(case, replace(right, rms_norm=wrong), CPU)
