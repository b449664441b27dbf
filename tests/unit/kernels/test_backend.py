"""Variable, device and type decide who computes; what a kernel cannot take its reference computes."""

import logging
import subprocess
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources, PTXASError

from mamba_kernels.arguments import UnsupportedArgument, WrongArgument
from mamba_kernels.dispatch import backend
from mamba_kernels.dispatch.backend import INTERPRETER, TORCH, backend_for
from mamba_kernels.dispatch.kernel_or_reference import KernelOrReference
from mamba_kernels.dispatch.operators import REFERENCE, Operators, triton_operators
from mamba_kernels.gated_delta import gated_delta_prefill
from mamba_kernels.kernel_choice import VARIABLE, UnknownKernels
from mamba_kernels.slot_plan import NoHostRoutes
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
    assert "the Triton kernel grow cannot take a call" in record.getMessage()
    assert "x has 3 rows" in record.getMessage()


def operators(kernel: Callable[..., Any], *, same_plans: bool = True) -> Operators:
    """Return the reference operators, except for one."""
    one = KernelOrReference("rope", kernel, lambda x: x - 1, same_plans=same_plans)
    return replace(REFERENCE, rope=one)


def failing(error: Exception) -> Callable[..., Any]:
    def kernel(*_: Any) -> None:
        raise error

    return kernel


@pytest.mark.parametrize(
    "error",
    [
        OutOfResources(300_000, 232_448, "shared memory"),
        CompilationError("def kernel(): pass", None, "unsupported"),
        PTXASError("ptxas fatal: Value 'sm_103a' is not defined"),
        RuntimeError("Triton Error [CUDA]: invalid argument"),
        RuntimeError("PassManager::run failed"),
        FileNotFoundError("No such file or directory: 'gcc'"),
        subprocess.CalledProcessError(1, "gcc"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_compiler_or_launcher_fails_with_at_the_start_leaves_that_kernel_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = operators(failing(error))
    with caplog.at_level(logging.WARNING):
        assert chosen.try_out(lambda: chosen.rope(torch.zeros(1))).tolist() == [-1]
    assert chosen.rope(torch.zeros(1)).tolist() == [-1]
    assert chosen.left_out == {"rope": "failed"}
    (record,) = caplog.records
    assert "rope is left out" in record.getMessage()
    assert type(error).__name__ in record.getMessage()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        NoHostRoutes("this plan is on the device alone"),
        WrongArgument("x has shape [3]; it must be [2]"),
        TypeError("a mistake of ours"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_no_fault_of_a_kernel_is_an_error_at_the_start_too(error: Exception) -> None:
    chosen = operators(failing(error))
    with pytest.raises(type(error)):
        chosen.try_out(lambda: chosen.rope(torch.zeros(1)))
    assert not chosen.left_out


def test_in_a_capture_a_kernel_that_fails_leaves_the_capture_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    error = RuntimeError("Triton Error [CUDA]: operation not permitted when stream is capturing")
    chosen = operators(failing(error))
    with pytest.raises(RuntimeError, match="not permitted"):
        chosen.try_out(lambda: chosen.rope(torch.zeros(1)))
    assert not chosen.left_out


def test_behind_the_start_a_kernel_that_fails_is_an_error_and_stays() -> None:
    chosen = operators(failing(OutOfResources(300_000, 232_448, "shared memory")))
    chosen.try_out(lambda: None)
    with pytest.raises(OutOfResources):
        chosen.rope(torch.zeros(1))
    assert not chosen.left_out


def test_the_work_of_a_start_begins_anew_without_the_kernel_that_failed_in_it() -> None:
    began: list[int] = []
    chosen = operators(failing(RuntimeError("no")))

    def work() -> torch.Tensor:
        began.append(1)
        computed: torch.Tensor = chosen.rope(torch.zeros(1))
        return computed

    assert chosen.try_out(work).tolist() == [-1]
    assert len(began) == 2


def test_attention_that_a_kernel_cannot_take_gets_other_plans_at_the_start_and_is_an_error_later() -> None:
    """Check the error: the reference of attention needs keys that a plan for kernels does not gather."""
    chosen = operators(failing(UnsupportedArgument("kv is float64")), same_plans=False)
    with pytest.raises(UnsupportedArgument):
        chosen.rope(torch.zeros(1))
    chosen.try_out(lambda: chosen.rope(torch.zeros(1)))
    assert chosen.left_out == {"rope": "failed"}


def test_operators_that_the_variable_names_are_left_to_their_references() -> None:
    for device, text in (
        (CUDA, "auto,-moe"),
        (CUDA, "triton, -moe , -paged_attention"),
        (CPU, "triton,-moe"),
    ):
        chosen = backend_for(device, torch.float32, {VARIABLE: text, INTERPRETER: "1"})
        wanted = {"moe": "asked"} | ({"paged_attention": "asked"} if "paged" in text else {})
        assert (chosen.name, chosen.operators.left_out) == ("triton", wanted)
        assert chosen.operators.gathers == ("paged" in text)
    assert not backend_for(CUDA, torch.float32, {VARIABLE: "triton"}).operators.left_out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "triton,-mo",
            r"no operator mo to leave out; choose from activate, .*moe, paged_attention.*sample",
        ),
        ("auto,-", "- follows a comma"),
        ("triton,moe", r"moe follows a comma; write -OPERATOR .* as in triton,-moe"),
        ("torch,-moe", r"only Triton's kernels can be left out one by one; choose torch, or triton,-moe"),
        ("avx2,-moe", r"only Triton's kernels can be left out one by one; choose avx2, or triton,-moe"),
        ("-moe", r"choose auto, torch, triton"),
    ],
)
def test_what_cannot_be_left_out_is_refused_with_what_can(text: str, told: str) -> None:
    for device in (CPU, CUDA):
        with pytest.raises(UnknownKernels, match=told):
            backend_for(device, torch.float32, {VARIABLE: text, INTERPRETER: "1"})


def test_on_a_cpu_whose_cpp_kernels_compute_whole_layers_no_operator_can_be_left_out() -> None:
    if backend_for(CPU, torch.float32, {}).library is None:
        pytest.skip("there are no C++ kernels here")
    with pytest.raises(UnknownKernels, match=r"moe cannot be left out on a CPU.*choose auto, or torch"):
        backend_for(CPU, torch.float32, {VARIABLE: "auto,-moe"})


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
    told = "the C++ kernel gated_delta_update cannot take a call, torch computes: state is float64"
    assert record.getMessage().startswith(told)
