"""Whatever argument of an operator is wrong is named before anything runs; other strides change nothing."""

import dataclasses
import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mamba_kernels
from mamba_kernels.arguments import WrongArgument
from mamba_kernels.moe import Activation, Routing
from mamba_kernels.paged_attention import triton as attention_kernels
from mamba_kernels.triton_support import KernelCall
from matrix_size import LARGE
from testmodels.delta import Delta
from testmodels.operator_calls import CALLS, chunks
from wrong_arguments import Changed, assert_refused, assert_same, changes, results, with_change


def operators() -> dict[str, Callable[..., Any]]:
    """Return the operators that both the package and its kernels offer."""
    found = {}
    for package in pkgutil.iter_modules(mamba_kernels.__path__, "mamba_kernels."):
        if package.ispkg and importlib.util.find_spec(f"{package.name}.triton"):
            kernels = importlib.import_module(f"{package.name}.triton")
            for name in importlib.import_module(package.name).__all__:
                offered = getattr(kernels, name, None)
                if getattr(offered, "__module__", "") == kernels.__name__:
                    found[name] = offered
    return found


OPERATORS = operators()


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[KernelCall]:
    """Record the launches of the test and run them."""
    # Programs that find nothing to do take the interpreter as long as others.
    monkeypatch.setattr(attention_kernels, "PROGRAMS", 2)
    started: list[KernelCall] = []
    run = KernelCall.run

    def noted(call: KernelCall) -> None:
        started.append(call)
        run(call)

    monkeypatch.setattr(KernelCall, "run", noted)
    return started


@functools.cache
def plain_results(name: str) -> list[torch.Tensor]:
    return results(OPERATORS[name], CALLS[name].make())


def test_every_operator_has_a_call_here() -> None:
    assert OPERATORS.keys() == CALLS.keys()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        pytest.param(name, each, id=f"{name}-{each}")
        for name in CALLS
        for number, each in enumerate(changes(CALLS[name]))
        if LARGE or number % 3 == 0  # the kinds of change take turns
    ],
)
def test_a_changed_argument_is_named_or_changes_nothing(
    name: str, changed: Changed, launches: list[KernelCall]
) -> None:
    given = with_change(CALLS[name].make(), changed)
    if changed.errors:
        assert_refused(OPERATORS[name], given, changed, launches)
    else:
        assert_same(results(OPERATORS[name], given), plain_results(name))
        assert launches


@pytest.mark.parametrize("name", ["conv1d_prefill", "ssd_prefill", "gated_delta_prefill"])
def test_a_plan_of_other_rows_or_of_another_device_is_named(name: str, launches: list[KernelCall]) -> None:
    given, operator = CALLS[name].make(), OPERATORS[name]
    with pytest.raises(WrongArgument, match=r"^(x|v) has 6 rows; its plan was made for 7"):
        operator(*(given | {"plan": chunks(7)}).values())
    with pytest.raises(WrongArgument, match=r"^(x|v) is on cpu; its plan was made for meta"):
        operator(*(given | {"plan": chunks(6, torch.device("meta"))}).values())
    assert not launches
    operator(*given.values())
    assert launches


def with_type(name: str, field: str) -> Any:
    """Return the inputs of a scan, one of them of another type than the others."""
    inputs = CALLS[name].make()["inputs"]
    return dataclasses.replace(inputs, **{field: getattr(inputs, field).bfloat16()})


LIMITS: dict[str, tuple[str, dict[str, Any]]] = {
    "x has rows of 32769": ("rms_norm", {"x": torch.zeros(1, 32769)}),
    "y has groups of 32769": (
        "gated_norm",
        {"y": torch.zeros(1, 32769), "gate": torch.zeros(1, 32769), "weight": None, "groups": 1},
    ),
    "groups is 3; it must divide the 10 elements of a row of x": (
        "rms_norm",
        {"dtype": torch.float32, "groups": 3},
    ),
    "groups is 0": ("gated_norm", {"groups": 0}),
    "groups is -2": ("gated_norm", {"groups": -2}),
    "groups is 3": ("gated_norm", {"groups": 3}),
    "weight has 17 taps": ("conv1d_prefill", {"weight": torch.zeros(17, 18)}),
    "weight has 0 taps": ("conv1d_update", {"weight": torch.zeros(0, 18)}),
    "weight has 0 taps;": ("conv1d_prefill", {"weight": torch.zeros(0, 18)}),
    "state has keys of 257": (
        "gated_delta_update",
        {"state": torch.zeros(4, 4, 6, 257), "inputs": Delta(4, 2, 6, 257, 2, torch.float32).inputs},
    ),
    "correction is float64": ("route", {"correction": torch.zeros(6, dtype=torch.float64)}),
    "groups is 4; it must divide the 6 experts": (
        "route",
        {"routing": Routing(2, "sigmoid", renormalise=True, groups=4)},
    ),
    "experts has shape \\[3, 0\\]": ("moe", {"experts": torch.zeros(3, 0, dtype=torch.int32)}),
    "gate_up has shape": ("moe", {"activation": Activation.SQUARED_RELU}),
    "down is bfloat16": ("moe", {"down": torch.zeros(3, 8, 4).bfloat16()}),
    "state is bfloat16": ("state_update", {"state": torch.zeros(4, 4, 6, 8).bfloat16()}),
    "B is bfloat16": ("state_update", {"inputs": with_type("state_update", "B")}),
    "C is bfloat16": ("ssd_prefill", {"inputs": with_type("ssd_prefill", "C")}),
    "k is bfloat16": ("gated_delta_update", {"inputs": with_type("gated_delta_update", "k")}),
    "q is bfloat16": ("gated_delta_prefill", {"inputs": with_type("gated_delta_prefill", "q")}),
    "gate_up has 0 experts": ("moe", {"gate_up": torch.zeros(0, 8, 8), "down": torch.zeros(0, 8, 4)}),
}
"""By how the error begins."""


@pytest.mark.parametrize("told", LIMITS)
def test_what_is_beyond_a_limit_or_of_a_type_of_its_own_is_named(
    told: str, launches: list[KernelCall]
) -> None:
    name, changed = LIMITS[told]
    with pytest.raises(WrongArgument, match=rf"^{told}"):
        OPERATORS[name](*(CALLS[name].make() | changed).values())
    assert not launches
