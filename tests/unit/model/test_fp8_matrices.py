"""Models in FP8, published so or rounded at load: what they compute, hold and plan is the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from mamba_kernels.dispatch.backend import TORCH
from mamba_kernels.fp8 import Fp8Matrix
from mamba_kernels.fp8.matrix import of_inputs, quantized
from mamba_kernels.moe import SharedExpert
from mamba_planner.families.registry import load_model_config
from mamba_server.model.checkpoint.errors import UnsupportedModel
from mamba_server.model.checkpoint.weight_files import weights_size
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.fp8 import Fp8Linear, JoinedProducts, fp8_backend
from mamba_server.model.layers.hybrid import HybridModel
from mamba_server.model.layers.linear import Linear
from mamba_server.model.layers.moe import Moe
from matrix_size import LARGE
from testmodels import checkpoints
from testmodels.batches import logits_of
from testmodels.checkpoints import VOCAB, random_nemotron_h, random_qwen3_5
from testmodels.quantized import METHODS, Method, Tensors, rewrite

CPU = torch.device("cpu")


def of_tensors() -> Method:
    """Return FP8 of ModelOpt: a scale for each matrix, and one of activations, which is read over."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        scale = (weight.abs().max() / 448).float()
        numbers = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {"weight": numbers, "weight_scale": scale, "input_scale": torch.ones(())}
        return {f"{module}.{name}": part for name, part in tensors.items()}, numbers.double() * scale.double()

    return Method({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, write, "")


def of_blocks() -> Method:
    """Return FP8 in blocks of 128 x 128, whose scale is called an inverse."""

    def write(module: str, weight: torch.Tensor, g: torch.Generator) -> tuple[Tensors, torch.Tensor]:
        heights, widths = (-(-extent // 128) for extent in weight.shape)
        scale = torch.rand(heights, widths, generator=g) * weight.abs().max() / 300 + weight.abs().max() / 448
        factors = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        factors = factors[: weight.shape[0], : weight.shape[1]]
        numbers = (weight / factors).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors = {f"{module}.weight": numbers, f"{module}.weight_scale_inv": scale}
        return tensors, numbers.double() * factors.double()

    return Method({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}, write, "")


PUBLISHED = {"channels": METHODS["fp8"], "tensors": of_tensors(), "blocks": of_blocks()}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model whose rows are up to three groups of 128 wide."""
    sizes = {"hidden_size": 192, "intermediate_size": 280, "mamba_num_heads": 8, "mamba_head_dim": 24}
    return random_nemotron_h(tmp_path_factory.mktemp("dense"), hybrid_override_pattern="M*-", **sizes)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_qwen3_5(
        tmp_path_factory.mktemp("sparse"), hidden_size=64, num_hidden_layers=2, num_experts=4,
        layer_types=["linear_attention", "full_attention"], num_experts_per_tok=2,
    )  # fmt: skip


def load(directory: Path, quantization: Any = "fp8", dtype: torch.dtype = torch.float32) -> HybridModel:
    config = load_model_config(directory)
    return HybridModel.load(config, directory, device=CPU, dtype=dtype, quantization=quantization)


def logits(model: HybridModel) -> torch.Tensor:
    """Return the logits of a prompt of 24 tokens and of four more tokens that are decoded."""
    return logits_of(model, prompt=24, decoded=4)


def tensors(each: object, seen: set[int] | None = None) -> Iterator[torch.Tensor]:
    """Yield the tensors that an object of the model holds, through closures, each once."""
    seen = set() if seen is None else seen
    if id(each) in seen:
        return
    seen.add(id(each))
    if isinstance(each, torch.Tensor):
        yield each
    elif isinstance(each, list | tuple):
        for part in each:
            yield from tensors(part, seen)
    elif type(each).__module__.startswith(("mamba_server.", "mamba_kernels.")):
        names = [*vars(each)] if hasattr(each, "__dict__") else []
        names += [name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in names:
            yield from tensors(getattr(each, name, None), seen)
    for cell in getattr(each, "__closure__", None) or ():
        yield from tensors(cell.cell_contents, seen)


def held(model: HybridModel) -> int:
    return sum({part.data_ptr(): part.nbytes for part in tensors(model)}.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_matrix_stays_as_it_is_stored(dense: Path, tmp_path: Path, name: str) -> None:
    made = rewrite(dense, tmp_path / "made", PUBLISHED[name])
    weights, exact = Weights(made), Weights(made / "plain")
    for module, shape in (("0.mixer.in_proj", (456, 192)), ("2.mixer.down_proj", (192, 280))):
        matrix = weights.fp8(f"layers.{module}.weight", shape)
        assert matrix is not None
        assert matrix.groups == (-(-shape[1] // 128) if name == "blocks" else 1)
        stands = matrix.numbers.double() * of_inputs(matrix.scales, shape[1]).double()
        expected = exact.take(f"layers.{module}.weight", shape, torch.float64, CPU)
        torch.testing.assert_close(stands, expected, rtol=1e-6, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED if LARGE else ["tensors", "blocks"])
def test_a_model_computes_with_published_numbers_and_rows_of_fp8(
    dense: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = rewrite(dense, tmp_path / "made", PUBLISHED[name])
    own = logits(load(made))
    monkeypatch.setattr("mamba_server.model.layers.hybrid.backend_for", lambda device, dtype: TORCH)
    plain = logits(load(made / "plain", "none", torch.float64))

    def emulated(self: Linear, x: torch.Tensor) -> torch.Tensor:
        if len(self.weight) == VOCAB:
            return x @ self.weight.T
        rows = quantized(x, -(-x.shape[1] // 128) if name == "blocks" else 1)
        return (rows.numbers.double() * of_inputs(rows.scales, x.shape[1]).double()) @ self.weight.T

    monkeypatch.setattr(Linear, "_product", emulated)
    exact = logits(load(made / "plain", "none", torch.float64))
    # A row that lies on a tie may fall to either side.
    assert (own - exact).abs().max() < 1e-3 * exact.std()
    assert (plain - exact).abs().max() > 1e-2 * exact.std()


def test_what_a_checkpoint_in_fp8_left_alone_is_not_rounded(dense: Path, tmp_path: Path) -> None:
    made = rewrite(dense, tmp_path / "made", METHODS["fp8"], keep=lambda name: name.endswith("v_proj"))
    parts = load(made).blocks[1].mixer.qkv_proj.parts
    assert [type(part) for part in parts] == [Fp8Linear, Linear]
    assert torch.isfinite(logits(load(made))).all()


def test_experts_and_projections_are_fp8_and_routers_and_the_vocabulary_are_not(sparse: Path) -> None:
    model = load(sparse)
    narrow = {part.shape for part in tensors(model) if part.dtype == torch.float8_e4m3fn}
    moe = model.blocks[1].mixer
    assert isinstance(moe, Moe)
    assert isinstance(moe.shared, SharedExpert)
    assert {type(each) for each in (moe.gate_up, moe.down, moe.shared.down)} == {Fp8Matrix}
    assert {moe.gate_up.shape, moe.down.shape, moe.shared.down.shape} <= narrow
    assert moe.scores.weight.dtype == torch.float32
    assert model.embedding.weight.dtype == torch.float32


FAMILIES = [name for name in dir(checkpoints) if name.startswith("random_") and "multimodal" not in name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if name != "random_checkpoint"] if LARGE else ["random_qwen3_next"]
)
def test_of_each_family_what_is_held_is_what_was_planned(tmp_path: Path, family: str) -> None:
    made = getattr(checkpoints, family)(tmp_path)
    size = weights_size(made)
    assert size is not None
    whole, small = (load(made, each, torch.bfloat16) for each in ("none", "fp8"))
    config = whole.config
    saved = size.loaded(config, "bfloat16") - size.loaded(config, "bfloat16", "fp8")
    if whole.backend is TORCH:
        assert held(whole) - held(small) == saved
    matrices = {part.data_ptr(): part for part in tensors(small) if part.dtype == torch.float8_e4m3fn}
    elements = sum(part.numel() for part in matrices.values())
    rows = sum(part[..., 0].numel() for part in matrices.values())
    assert saved == elements - 4 * rows


def test_published_fp8_is_planned_by_its_files(dense: Path, tmp_path: Path) -> None:
    for name, method in PUBLISHED.items():
        made = rewrite(dense, tmp_path / name, method, keep=lambda module: module.endswith("v_proj"))
        size = weights_size(made)
        assert size is not None
        model = load(made, dtype=torch.bfloat16)
        scales = {part.data_ptr(): part for part in _scales(model)}
        assert size.fp8_scales == sum(part.numel() for part in scales.values()), name
        numbers = {part.data_ptr(): part for part in tensors(model) if part.dtype == torch.float8_e4m3fn}
        assert size.fp8 == sum(part.numel() for part in numbers.values()), name


def _scales(model: HybridModel) -> Iterator[torch.Tensor]:
    for block in model.blocks:
        for value in vars(block.mixer).values():
            for part in value.parts if isinstance(value, JoinedProducts) else [value]:
                if isinstance(part, Fp8Linear):
                    yield part.matrix.scales


def test_where_fp8_cannot_be_it_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedModel, match="batch-invariant mode exclude each other"):
        fp8_backend(TORCH, CPU, batch_invariant=True)
    device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(UnsupportedModel, match=r"8\.9 or later.*has 8\.0: serve with --quantization none"):
        fp8_backend(TORCH, device, batch_invariant=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    assert fp8_backend(TORCH, device, batch_invariant=False) is TORCH
