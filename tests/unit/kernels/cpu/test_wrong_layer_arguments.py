"""Wrong arguments of a layer's C++ kernels: each is named before a kernel runs.

Strides that are allowed change nothing. The plans are read on the host and are not among the arguments that
can be wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mamba_kernels.arguments import WrongArgument
from mamba_kernels.cpu.experts import PackedExperts
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.library import library as loaded
from mamba_kernels.cpu.mamba_decode import MambaDecoder
from mamba_kernels.cpu.mamba_prefill import MambaPrefiller
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedWeight
from mamba_kernels.cpu.paged_decode import PagedDecoder
from mamba_kernels.cpu.paged_extend import PagedExtender
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.cpu.rope import RowRope
from mamba_kernels.cpu.row_operations import RowArgmax
from mamba_kernels.moe.activation import Activation
from testmodels.mixers import MixerRows, Sizes
from testmodels.operator_calls import CALLS, OperatorCall, chunks, numbers, slots
from testmodels.paged import SCALE, PagedBatch
from wrong_arguments import Arguments, Changed, assert_refused, assert_same, changes, results, with_change

SIZES: Sizes = (4, 6, 8, 2, 4)
HEADS, KV_HEADS, WIDTH = 4, 2, 16
OF_A_PLAN = "plan."


def _mixer(rows: int) -> MixerRows:
    return MixerRows(rows, SIZES, torch.float32, torch.float32, norm=True)


def _recurrent(plan: Any, rows: int) -> Arguments:
    mixer = _mixer(rows)
    caches = {name: getattr(mixer, name).nan_to_num(nan=0.0) for name in ("window", "state")}
    return {"projected": mixer.projected, **caches, "plan": plan, "out": numbers(rows, 24)}


def _attention(rows: slice) -> Arguments:
    batch = PagedBatch([1, 1, 3], [5, 9, 4], heads=HEADS, kv_heads=KV_HEADS, width=WIDTH, dtype=torch.float32)
    query = batch.query[rows]
    kv = batch.kv.nan_to_num(nan=0.0)
    return {"query": query, "kv": kv, "plan": batch.plan(), "out": numbers(*query.shape)}


def _experts(library: Library) -> PackedExperts:
    matrices = [(PackedWeight(numbers(8, 10)), PackedWeight(numbers(10, 4))) for _ in range(3)]
    return PackedExperts(library, matrices, Activation.GATED_SILU)


@dataclass(frozen=True)
class LayerCall:
    function: str
    """Name of the library's function."""
    layer: Callable[[Library], Callable[..., Any]]
    call: OperatorCall


def _of_a_mixer(make: Callable[[], Arguments]) -> OperatorCall:
    return OperatorCall(
        make, ("state", "state"), {"window.0": None, "state.0": None},
        dense_from={"window": 1, "state": 1, "out": 0},
    )  # fmt: skip


def _of_attention(rows: slice) -> OperatorCall:
    return OperatorCall(
        lambda: _attention(rows), ("kv", "kv"), {"kv.0": None, "kv.2": None}, means_another=("kv.2",),
        dense_from={"query": 1, "kv": 2, "out": 0},
    )  # fmt: skip


_SHAPE = {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": WIDTH}
LAYERS = {
    "MambaDecoder": LayerCall(
        "mamba_decode",
        lambda library: MambaDecoder(library, _mixer(2).prepared()),
        _of_a_mixer(lambda: _recurrent(slots(), 2)),
    ),
    "MambaPrefiller": LayerCall(
        "mamba_prefill",
        lambda library: MambaPrefiller(library, _mixer(6).prepared()),
        _of_a_mixer(lambda: _recurrent(chunks(), 6)),
    ),
    "PagedDecoder": LayerCall(
        "paged_decode", lambda library: PagedDecoder(library, **_SHAPE, scale=SCALE), _of_attention(slice(2))
    ),
    "PagedExtender": LayerCall(
        "paged_extend",
        lambda library: PagedExtender(library, **_SHAPE, scale=SCALE),
        _of_attention(slice(2, None)),
    ),
    "RowRope": LayerCall(
        "rope",
        RowRope,
        replace(CALLS["rope"], device=("x", "x"), dense_from={"x": 1, "cos": 0, "sin": 0}),
    ),
    "RowNorm": LayerCall(
        "rms_norm",
        lambda library: RowNorm(library, numbers(10), 1e-5),
        OperatorCall(
            lambda: {"x": numbers(3, 10), "added": numbers(3, 10)}, ("x", "x"), {"x.0": "added"},
            dense_from={"added": 0},
        ),
    ),
}  # fmt: skip


@pytest.fixture
def library() -> Library:
    """Return the library of any instructions: all share the checks."""
    found = loaded()
    if found is None:
        pytest.skip("there are no C++ kernels here")
    return found


def noted(library: Library, monkeypatch: pytest.MonkeyPatch, function: str) -> list[tuple[Any, ...]]:
    """Return the arguments of the calls of a function of the library from now on."""
    launches: list[tuple[Any, ...]] = []
    run = getattr(library, function)

    def note(*arguments: Any) -> None:
        launches.append(arguments)
        run(*arguments)

    monkeypatch.setattr(library, function, note)
    return launches


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        pytest.param(name, each, id=f"{name}-{each}")
        for name, layer in LAYERS.items()
        for each in changes(layer.call)
        if not each.path.startswith(OF_A_PLAN)
    ],
)
def test_a_changed_argument_is_named_or_changes_nothing(
    library: Library, monkeypatch: pytest.MonkeyPatch, name: str, changed: Changed
) -> None:
    made = LAYERS[name]
    launches = noted(library, monkeypatch, made.function)
    layer, given = made.layer(library), with_change(made.call.make(), changed)
    if changed.errors:
        assert_refused(layer, given, changed, launches)
    else:
        assert_same(results(layer, given), results(layer, made.call.make()))
        assert launches


WRONG = {
    "hidden": [numbers(3, 9), numbers(3, 11), numbers(10), numbers(3, 10, 1), numbers(3, 10).to("meta")],
    "experts": [torch.zeros(2, 2, dtype=torch.int32), torch.zeros(3, 2), torch.zeros(3, dtype=torch.int32)],
    "weights": [numbers(3, 1), numbers(2, 2), numbers(3, 2).double()],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, each) for name in WRONG for each in WRONG[name]])
def test_what_is_wrong_for_experts_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch, name: str, wrong: torch.Tensor
) -> None:
    launches = noted(library, monkeypatch, "moe")
    right = {
        "hidden": numbers(3, 10),
        "experts": torch.tensor([[0, 1], [2, -1], [1, 0]], dtype=torch.int32),
        "weights": numbers(3, 2),
    }
    experts = _experts(library)
    assert experts(**right).shape == (3, 10)
    with pytest.raises(WrongArgument, match=rf"^{name} "):
        experts(**{**right, name: wrong})
    assert len(launches) == 1, "refused before anything runs"


@pytest.mark.parametrize("wrong", [numbers(3, 9), numbers(3, 11), numbers(10), numbers(3, 10).to("meta")])
def test_what_is_wrong_for_a_product_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch, wrong: torch.Tensor
) -> None:
    launches = noted(library, monkeypatch, "linear")
    with pytest.raises(WrongArgument, match=r"^x "):
        PackedLinear(library, PackedWeight(numbers(8, 10)), None)(wrong)
    assert not launches


@pytest.mark.parametrize(
    "wrong", [numbers(3, 0), numbers(3), numbers(3, 4).double(), numbers(3, 4).to("meta")]
)
def test_what_is_wrong_for_the_largest_is_named(
    library: Library, monkeypatch: pytest.MonkeyPatch, wrong: torch.Tensor
) -> None:
    launches = noted(library, monkeypatch, "largest")
    with pytest.raises(WrongArgument, match=r"^rows "):
        RowArgmax(library)(wrong)
    assert not launches


CHANGED_WEIGHTS = {
    "conv_weight": numbers(4, 57),
    "conv_bias": numbers(55),
    "A": numbers(4).double(),
    "D": numbers(5),
    "dt_bias": numbers(3),
    "norm": numbers(25),
}


@pytest.mark.parametrize("name", CHANGED_WEIGHTS)
def test_a_mixers_weight_that_is_wrong_is_named(name: str) -> None:
    mixer = _mixer(1)
    mixer.prepared()
    mixer.weights = replace(mixer.weights, **{name: CHANGED_WEIGHTS[name]})
    with pytest.raises(WrongArgument, match=rf"^{name} "):
        mixer.prepared()
