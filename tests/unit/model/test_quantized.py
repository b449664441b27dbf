"""Checkpoints that are published quantized are the numbers that they store, and are held in as few bits.

The small models have the names and shapes of published files; larger ones would differ in sizes alone.
"""

import re
from collections import Counter
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from int8_rows import as_int8
from living_objects import living
from mamba_kernels.cpu.library import library
from mamba_kernels.cpu.quantized.block_weight import BlockWeight
from mamba_kernels.cpu.quantized.int4_weight import pack_numbers
from mamba_planner.families.registry import load_model_config
from mamba_planner.families.stored_matrices import matrices
from mamba_server.model.checkpoint.errors import WeightsError
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.linear import Linear
from testmodels.batches import logits_of
from testmodels.checkpoints import (
    LATENT_EXPERTS,
    VOCAB,
    random_bamba,
    random_falcon_h1,
    random_granite,
    random_kimi_linear,
    random_lfm2,
    random_mamba2,
    random_nemotron_h,
    random_olmo_hybrid,
    random_qwen3_5,
    random_qwen3_next,
    random_zamba2,
)
from testmodels.quantized import METHODS, of_codes, rewrite

CPU = torch.device("cpu")
FILE = "model.safetensors"
EVEN: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
}
"""Sizes that are whole groups, like those of published models."""
needs_kernels = pytest.mark.skipif(library() is None, reason="no C++ kernels on this machine")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_nemotron_h(tmp_path_factory.mktemp("dense"), hybrid_override_pattern="M*-", **EVEN)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model with experts and with four input projections of a mixer."""
    return random_qwen3_5(
        tmp_path_factory.mktemp("sparse"), hidden_size=64, num_hidden_layers=2, num_experts=4,
        layer_types=["linear_attention", "full_attention"], num_experts_per_tok=2,
        linear_num_value_heads=8, linear_num_key_heads=4, linear_value_head_dim=16, moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
    )  # fmt: skip


def load(directory: Path, dtype: torch.dtype = torch.float32) -> HybridModel:
    return HybridModel.load(load_model_config(directory), directory, device=CPU, dtype=dtype)


def logits(model: HybridModel) -> torch.Tensor:
    """Return the logits of a prompt of 24 tokens and of four more tokens that are decoded."""
    return logits_of(model, prompt=24, decoded=4)


@pytest.mark.parametrize("name", METHODS)
def test_a_matrix_is_the_numbers_that_its_tensors_store(dense: Path, tmp_path: Path, name: str) -> None:
    method = METHODS[name]
    made = rewrite(dense, tmp_path / "made", method)
    exact = load_file(made / "plain" / FILE)
    weights, held = Weights(made), set()
    for key, matrix in exact.items():
        short = key.removeprefix("backbone.")
        if matrix.dim() == 2 and matrix.dtype is torch.float64:
            shape = tuple(matrix.shape)
            read = weights.take(short, shape, torch.float64, CPU)
            # FP8 is multiplied as float32.
            assert torch.allclose(read, matrix, rtol=1e-7 if name == "fp8" else 1e-15, atol=0), key
            numbers = weights.numbers(short, shape, torch.float32)
            if numbers is None:
                held.add("")
                continue
            packed = pack_numbers(numbers)
            assert torch.equal(packed.rows(torch.arange(len(matrix))), matrix.float()), key
            held.add(type(packed).__name__)
    assert held == {method.held}


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("name", ["gptq-zeros", "w4a16", "w8a8", "mxfp4", "nvfp4"])
def test_what_is_held_is_what_was_planned(sparse: Path, tmp_path: Path, name: str) -> None:
    """Count matrices in few bits; b and a are as they were, as many methods leave them."""
    made = rewrite(
        sparse, tmp_path / "made", METHODS[name], keep=lambda module: module.endswith(("_b", "_a"))
    )
    before = living(BlockWeight)
    model = load(made)
    kept = living(BlockWeight, besides=before)
    assert {type(each).__name__ for each in kept} == ({METHODS[name].held} if METHODS[name].held else set())
    whole, small = weights_size(made / "plain"), weights_size(made)
    assert whole is not None
    assert small is not None
    assert whole.of_matrices == small.of_matrices
    # GPTQ writes a bias of zeros beside each matrix.
    assert small.elements == pytest.approx(whole.elements, rel=0.02)
    saved = whole.loaded(model.config, "float32") - small.loaded(model.config, "float32", on_cpu=True)
    held = sum(each.outputs * each.inputs * 4 - each.panels.nbytes for each in kept)
    assert saved == pytest.approx(held, rel=0.02)
    # The configuration alone says the same.
    assert model.config.stored is not None
    counted = model.config.stored
    by_form = {
        "QuantizedWeight": counted.int8,
        "Int4Weight": counted.int4,
        "Int4ZerosWeight": counted.int4_zeros,
    }
    assert by_form.get(METHODS[name].held, 0) == pytest.approx(
        (small.int8 + small.int4 + small.int4_zeros), rel=0.02
    )


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize("name", ["gptq-v2", "w8a8", "mxfp4"])
def test_the_model_computes_with_these_numbers_and_rows_of_int8(
    dense: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS[name])
    own = logits(load(made))

    def emulated(self: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(self.weight) == VOCAB:
            return x @ self.weight.T
        return as_int8(x) @ self.weight.T

    monkeypatch.setattr(Linear, "_product", emulated)
    exact = logits(load(made / "plain", torch.float64))
    assert (own - exact).abs().max() < 1e-4 * exact.std()


def test_what_does_not_fit_together_is_told_with_the_file_and_the_matrix(dense: Path, tmp_path: Path) -> None:
    name = "layers.0.mixer.in_proj"
    for method, part, wrong in (
        ("gptq", "scales", torch.ones(3, 5)),
        ("awq", "qweight", torch.ones(64, 3, dtype=torch.int32)),
        ("w4a16", "weight_packed", torch.ones(328, 9, dtype=torch.int32)),
        ("nvfp4", "weight_scale", torch.ones(328, 3).to(torch.float8_e4m3fn)),
    ):
        made = rewrite(dense, tmp_path / method, METHODS[method])
        tensors = load_file(made / FILE)
        tensors[f"backbone.{name}.{part}"] = wrong
        save_file(tensors, made / FILE)
        with pytest.raises(WeightsError, match=rf"{FILE}.*{name}.*{part.partition('_')[0]}"):
            Weights(made).take(f"{name}.weight", (328, 64), torch.float32, CPU)


def test_matrices_that_become_ordinary_numbers_are_named_in_the_log(
    dense: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS["gptq-8-zeros"])
    load(made)
    if library() is not None:
        assert "gptq, since its zeros" in caplog.text
    assert "held as ordinary numbers" in caplog.text


def test_scales_of_activations_and_caches_are_read_over_and_other_tensors_are_not(
    dense: Path, tmp_path: Path
) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS["w4a16"])
    tensors = load_file(made / FILE)
    tensors["backbone.layers.1.mixer.k_proj.k_scale"] = torch.ones(())
    save_file(tensors, made / FILE)
    load(made)
    save_file({**tensors, "backbone.layers.0.mixer.in_proj.bias": torch.ones(328)}, made / FILE)
    with pytest.raises(WeightsError, match="bias is unexpected"):
        load(made)


def test_experts_in_one_tensor_of_mxfp4_are_the_numbers_of_all(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(1)
    blocks = torch.randint(0, 256, (2, 6, 3, 16), generator=g).byte()
    scales = torch.randint(115, 130, (2, 6, 3), generator=g).byte()
    name = "layers.0.mlp.experts.gate_up_proj"
    save_file({f"model.{name}_blocks": blocks, f"model.{name}_scales": scales}, tmp_path / FILE)
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2)
    exact = (of_codes(codes) * torch.exp2(scales.double() - 127).unsqueeze(-1)).flatten(-2)
    weights = Weights(tmp_path)
    assert weights.rows(name) == 2
    assert torch.equal(weights.take(name, (2, 6, 96), torch.float64, CPU), exact)
    size = weights_size(tmp_path)
    assert size is not None
    assert (size.elements, size.of_matrices, size.int8) == (2 * 6 * 96, 2 * 6 * 96, 0)


FAMILIES: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "nemotron_h": (random_nemotron_h, {"hybrid_override_pattern": "ME*-", "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40}),
    "latent_experts": (random_nemotron_h, LATENT_EXPERTS),
    "granite": (random_granite, {}),
    "bamba": (random_bamba, {}),
    "falcon_h1": (random_falcon_h1, {}),
    "mamba2": (random_mamba2, {}),
    "qwen3_next": (random_qwen3_next, {}),
    "qwen3_5": (random_qwen3_5, {}),
    "lfm2": (random_lfm2, {"num_experts": 4, "num_experts_per_tok": 2}),
    "olmo_hybrid": (random_olmo_hybrid, {}),
    "zamba2": (random_zamba2, {}),
    "kimi_linear": (random_kimi_linear, {"mlp_layer_types": ["sparse"] * 4}),
}  # fmt: skip
NEVER = ("embed_tokens", "embeddings", "embedding", ".gate", "shared_expert_gate")
"""Endings of modules that methods leave alone."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_plan_knows_the_names_and_sizes_of_the_matrices_of_each_family(
    tmp_path: Path, family: str
) -> None:
    write, fields = FAMILIES[family]
    write(tmp_path, **fields)
    published: Counter[str] = Counter()
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                module, shape = name.removesuffix(".weight"), tensors.get_slice(name).get_shape()
                if len(shape) == 2 and not module.endswith(NEVER):
                    short = re.sub(r"^(model|backbone)\.", "", module)
                    published[re.sub(r"experts\.\d+", "experts.0", short)] += prod(shape)
    assert Counter(dict(matrices(load_model_config(tmp_path)))) == published
