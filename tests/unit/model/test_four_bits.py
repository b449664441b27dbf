"""Checkpoints of four bits stay packed where operators compute, and are the numbers that they store.

The operators here are the references, with which the kernels are compared elsewhere.
"""

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch

from living_objects import living
from mamba_kernels.dispatch.backend import TRITON, Backend
from mamba_kernels.dispatch.operators import REFERENCE
from mamba_kernels.four_bit import FourBitMatrix
from mamba_kernels.fp8 import Fp8Matrix
from mamba_planner.families.registry import load_model_config
from mamba_server.model.adapters.adapter_bank import AdapterBank
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.hybrid import HybridModel
from matrix_size import LARGE
from testmodels.batches import logits_of
from testmodels.checkpoints import random_nemotron_h, random_qwen3_5
from testmodels.quantized import METHODS, rewrite

CPU = torch.device("cpu")
EVEN = {"hidden_size": 64, "intermediate_size": 128, "mamba_num_heads": 8, "mamba_head_dim": 16}
FOUR_BITS = (
    ("gptq", "gptq-zeros", "gptq-channel", "awq", "w4a16-zeros", "nvfp4", "nvfp4-packed", "mxfp4")
    if LARGE
    else ("gptq-zeros", "nvfp4")
)
"""Methods of `METHODS`."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_nemotron_h(tmp_path_factory.mktemp("dense"), hybrid_override_pattern="M*-", **EVEN)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_qwen3_5(
        tmp_path_factory.mktemp("sparse"), hidden_size=64, num_hidden_layers=2, num_experts=4,
        layer_types=["linear_attention", "full_attention"], num_experts_per_tok=2,
        linear_num_value_heads=8, linear_num_key_heads=4, linear_value_head_dim=16, moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )  # fmt: skip


def load(
    directory: Path, dtype: torch.dtype, quantization: str = "none", adapters: AdapterBank | None = None
) -> HybridModel:
    return HybridModel(
        load_model_config(directory), Weights(directory), device=CPU, dtype=dtype,
        quantization=quantization, backend=Backend(TRITON, REFERENCE), adapters=adapters,
    )  # fmt: skip


def logits(model: HybridModel) -> torch.Tensor:
    """Return the logits of a prompt of 12 tokens and of two more tokens that are decoded."""
    return logits_of(model, prompt=12, decoded=2)


def kept_by(model: HybridModel, before: list[FourBitMatrix]) -> int:
    """Return the bytes of the model's matrices of four bits without places of inputs, which no plan counts.

    before: matrices of other models.
    """
    assert model.blocks
    own = living(FourBitMatrix, besides=before)
    return sum(each.nbytes - (0 if each.order is None else each.order.nbytes) for each in own)


def saved(small: Path, whole: Path, dtype: str) -> int:
    """Return the bytes that a plan for a GPU counts less for one model than for the other."""
    sizes = weights_size(whole), weights_size(small)
    assert sizes[0] is not None
    assert sizes[1] is not None
    # GPTQ writes a bias of zeros beside each matrix.
    sizes = sizes[0], replace(sizes[1], elements=sizes[0].elements)
    plain, own = (size.loaded(load_model_config(small), dtype) for size in sizes)
    return plain - own


@pytest.mark.slow
@pytest.mark.parametrize("name", FOUR_BITS)
def test_a_model_computes_with_the_numbers_of_its_checkpoint_and_holds_what_was_planned(
    dense: Path, tmp_path: Path, name: str
) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS[name])
    before = living(FourBitMatrix)
    model = load(made, torch.float32)
    size = weights_size(made)
    assert size is not None
    assert 0 < size.packed < size.of_matrices
    assert kept_by(model, before) == 4 * size.packed - saved(made, made / "plain", "float32")
    exact = logits(load(made / "plain", torch.float64))
    assert (logits(model) - exact).abs().max() < 1e-5 * exact.std()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["awq", "mxfp4"] if LARGE else ["mxfp4"])
def test_experts_stay_in_four_bits_and_rows_of_a_projection_may_change_places(
    sparse: Path, tmp_path: Path, name: str
) -> None:
    """Leave two projections of the mixer as they are, so that products have matrices of both kinds."""
    made = rewrite(
        sparse, tmp_path / "made", METHODS[name], keep=lambda module: module.endswith(("_b", "_a"))
    )
    before = living(FourBitMatrix)
    model = load(made, torch.float32)
    size = weights_size(made)
    assert size is not None
    assert kept_by(model, before) == 4 * size.packed - saved(made, made / "plain", "float32")
    exact = logits(load(made / "plain", torch.float64))
    assert (logits(model) - exact).abs().max() < 1e-5 * exact.std()
    # The configuration alone says the same, but for factors of rows.
    stored = model.config.stored
    assert stored is not None
    assert stored.packed == pytest.approx(size.packed, rel=0.02)


@pytest.mark.slow
def test_fitted_matrices_are_near_the_weights_and_as_large_as_planned(sparse: Path) -> None:
    before = living(FourBitMatrix)
    model = load(sparse, torch.float32, "int4")
    size = weights_size(sparse)
    assert size is not None
    own = living(FourBitMatrix, besides=before)
    elements = sum(prod(each.shape) for each in own)
    planned = size.loaded(model.config, "float32") - size.loaded(model.config, "float32", "int4")
    # The router stays as it is; it is a hundredth of published models.
    assert elements * (4 - 18 / 32) == pytest.approx(planned, rel=0.05)
    exact = logits(load(sparse, torch.float64))
    far = (logits(model) - exact).square().mean().sqrt() / exact.std()
    assert 1e-3 < far < 0.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quantization", "form"), [("nvfp4", "fp8", Fp8Matrix), ("fp8", "int4", FourBitMatrix)]
)
def test_a_checkpoint_takes_another_form_if_that_is_asked_for(
    dense: Path, tmp_path: Path, name: str, quantization: str, form: type[Fp8Matrix | FourBitMatrix]
) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS[name])
    before = living(Fp8Matrix, FourBitMatrix)
    model = load(made, torch.float32, quantization)
    size = weights_size(made)
    assert size is not None
    own = living(Fp8Matrix, FourBitMatrix, besides=before)
    assert {type(each) for each in own} == {form}
    planned = size.loaded(model.config, "float32", quantization)
    assert sum(4 * prod(each.shape) - each.nbytes for each in own) == 4 * size.elements - planned
    exact = logits(load(made / "plain", torch.float64))
    far = (logits(model) - exact).square().mean().sqrt() / exact.std()
    assert 1e-3 < far < 0.4


@pytest.mark.parametrize(
    ("quantization", "says"),
    [("fp8", "experts in FP8 .* or --quantization fp8"), ("int4", "four bits .* or --quantization int4")],
)
def test_experts_of_fewer_bits_refuse_places_for_adapters(sparse: Path, quantization: str, says: str) -> None:
    bank = AdapterBank(1, 2, CPU, torch.float32, expert_rank=2)
    with pytest.raises(UnsupportedModel, match=says):
        load(sparse, torch.float32, quantization, bank)


def test_experts_that_a_checkpoint_stores_in_four_bits_refuse_places_for_adapters(
    sparse: Path, tmp_path: Path
) -> None:
    made = rewrite(sparse, tmp_path / "made", METHODS["mxfp4"], keep=lambda name: name.endswith(("_b", "_a")))
    bank = AdapterBank(1, 2, CPU, torch.float32, expert_rank=2)
    with pytest.raises(UnsupportedModel, match="serve a checkpoint whose experts are bfloat16"):
        load(made, torch.float32, "none", bank)
    assert load(made, torch.float32, "none", AdapterBank(1, 2, CPU, torch.float32)).blocks
