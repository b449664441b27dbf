"""Variable, device and type decide who computes; what a kernel cannot take its reference computes."""

import logging

import pytest
import torch

from mamba_kernels.arguments import UnsupportedArgument, WrongArgument
from mamba_kernels.cpu.library import VARIABLE, UnknownKernels
from mamba_kernels.dispatch import backend
from mamba_kernels.dispatch.backend import INTERPRETER, TORCH, backend_for
from mamba_kernels.dispatch.operators import KernelOrReference, triton_operators
from mamba_kernels.gated_delta import gated_delta_prefill
from testmodels.chunks import PiecePlan, chunk_plan
from testmodels.delta import Delta
from testmodels.operator_calls import CALLS

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_a_gpu_gets_tritons_kernels_unless_torch_is_asked_for() -> None:
    for environment in ({}, {VARIABLE: "auto"}, {VARIABLE: "triton"}):
        chosen = backend_for(CUDA, torch.bfloat16, environment)
        assert (chosen.name, chosen.library) == ("triton", None)
        assert not chosen.operators.gathers
    assert backend_for(CUDA, torch.bfloat16, {VARIABLE: "torch"}) is TORCH


def test_a_cpu_gets_tritons_kernels_in_the_interpreter_alone() -> None:
    with pytest.raises(UnknownKernels, match=r"needs a CUDA device.*TRITON_INTERPRET=1"):
        backend_for(CPU, torch.float32, {VARIABLE: "triton"})
    chosen = backend_for(CPU, torch.float32, {VARIABLE: "triton", INTERPRETER: "1"})
    assert chosen.name == "triton"
    assert backend_for(CPU, torch.float32, {INTERPRETER: "1"}).name != "triton"


def test_an_instruction_set_of_a_cpu_is_not_for_a_gpu() -> None:
    with pytest.raises(UnknownKernels, match="the device is cuda; choose auto, torch or triton"):
        backend_for(CUDA, torch.bfloat16, {VARIABLE: "avx2"})


@pytest.mark.parametrize("device", [CPU, CUDA])
def test_float64_is_for_torch(device: torch.device) -> None:
    assert backend_for(device, torch.float64, {}) is TORCH


def test_without_triton_a_gpu_computes_with_torch_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> None:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(backend, "triton_operators", missing)
    assert backend_for(CUDA, torch.bfloat16, {}) is TORCH
    with pytest.raises(UnknownKernels, match="install triton"):
        backend_for(CUDA, torch.bfloat16, {VARIABLE: "triton"})


def test_what_a_kernel_cannot_take_the_reference_computes_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 2:
            raise UnsupportedArgument(f"x has {x.shape[0]} rows; it must have 2")
        return x + 1

    operator = KernelOrReference("grow", kernel, lambda x: x - 1)
    with caplog.at_level(logging.WARNING):
        assert operator(torch.zeros(2)).tolist() == [1, 1]
        assert operator(torch.zeros(3)).tolist() == [-1] * 3
        assert operator(torch.zeros(4)).tolist() == [-1] * 4
    (record,) = caplog.records
    assert "the Triton kernel grow cannot take this" in record.getMessage()
    assert "x has 3 rows" in record.getMessage()


@pytest.mark.parametrize("name", ["rms_norm", "gated_norm", "conv1d_update"])
def test_arguments_that_contradict_each_other_are_not_stretched_by_a_reference(name: str) -> None:
    """Torch would take a weight or a bias of one element for all of them."""
    given = CALLS[name].make()
    stretched = "bias" if "bias" in given else "weight"
    with pytest.raises(WrongArgument, match=rf"^{stretched} has shape \[1\]; it must be \["):
        getattr(triton_operators(), name)(*(given | {stretched: given[stretched][:1]}).values())


def test_on_a_cpu_the_delta_rule_is_cpps_and_what_that_cannot_take_is_torchs_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = backend_for(CPU, torch.float32, {})
    if chosen.library is None:
        pytest.skip("there are no C++ kernels here")
    rows, plan = Delta(2, 1, 8, 16, 70, torch.float32), chunk_plan([PiecePlan(0, 70, -1, 1, {})], 64)
    (state, out), (reference, expected) = (
        (torch.zeros(2, 2, 8, 16), torch.empty(70, 2, 8)) for _ in range(2)
    )
    chosen.operators.gated_delta_prefill(state, rows.inputs, plan, out)
    gated_delta_prefill(reference, rows.inputs, plan, expected)
    assert not torch.equal(out, expected), "other sums than torch's"
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            chosen.operators.gated_delta_update(
                state.double(), rows.part(slice(1)).inputs, plan.slots, out[:1].double()
            )
    (record,) = caplog.records
    told = "the C++ kernel gated_delta_update cannot take this, torch computes: state is float64"
    assert record.getMessage().startswith(told)
