"""Layers against their formulas in plain torch: tiles of rows, activations, the gated feed-forward."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mamba_planner.model_config import GatedDeltaConfig, MlpConfig
from mamba_server.model.checkpoint.errors import UnsupportedModel, WeightsError
from mamba_server.model.checkpoint.tensor_names import NAMES
from mamba_server.model.checkpoint.weights import Weights
from mamba_server.model.layers.gated_delta import by_kind
from mamba_server.model.layers.linear import Linear
from mamba_server.model.layers.loader import Loader
from mamba_server.model.layers.mlp import Mlp, activation

CPU = torch.device("cpu")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 17), st.booleans())
def test_a_product_in_tiles_is_the_product(rows: int, tile: int, bias: bool) -> None:
    x, weight = random(rows, 6, seed=rows), random(5, 6, seed=1)
    offset = random(5, seed=2) if bias else None
    torch.testing.assert_close(Linear(weight, offset, tile)(x), F.linear(x, weight, offset))


@pytest.mark.parametrize("tile", [0, 4])
def test_no_rows_are_no_product(tile: int) -> None:
    assert Linear(random(5, 6), random(5), tile)(random(0, 6)).shape == (0, 5)


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("relu2", lambda x: x.clamp(min=0) ** 2),
        ("relu", lambda x: x.clamp(min=0)),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("swish", lambda x: x / (1 + torch.exp(-x))),
        ("gelu", lambda x: x * torch.special.ndtr(x)),
        ("gelu_new", lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))),
    ],
)
def test_an_activation_is_its_formula_at_every_size_of_number(name, formula, invariant: bool) -> None:
    x = torch.cat([random(500), torch.tensor([0.0, -0.0, 30.0, -30.0, 1e-30, -1e-30], dtype=torch.float64)])
    activated = activation(name, batch_invariant=invariant)
    torch.testing.assert_close(activated(x.clone(), None), formula(x))
    factor = random(len(x), seed=1)
    torch.testing.assert_close(activated(x.clone(), factor), formula(x) * factor)


def test_an_activation_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mish'.*relu2, relu"):
        activation("mish")


def write(directory: Path, **tensors: torch.Tensor) -> Loader:
    save_file(
        {name.replace("__", "."): tensor for name, tensor in tensors.items()}, directory / "m.safetensors"
    )
    return Loader(Weights(directory), CPU, torch.float64, prefix="block.")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_a_feed_forward_is_up_activation_down_and_the_gate_where_there_is_one(
    tmp_path: Path, gated: bool, bias: bool
) -> None:
    tensors = {
        "block__up_proj__weight": random(7, 4, seed=1),
        "block__down_proj__weight": random(4, 7, seed=2),
    }
    if gated:
        tensors["block__gate_proj__weight"] = random(7, 4, seed=3)
    if bias:
        for number, name in enumerate(list(tensors), 10):
            tensors[name.replace("weight", "bias")] = random(tensors[name].shape[0], seed=number)
    mlp = Mlp(MlpConfig(7, "silu", gated, bias), 4, NAMES["nemotron_h"], write(tmp_path, **tensors))

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, tensors[f"block__{name}__weight"], tensors.get(f"block__{name}__bias"))

    x = random(5, 4, seed=4)
    before = x.clone()
    inner = F.silu(linear("gate_proj", x)) * linear("up_proj", x) if gated else F.silu(linear("up_proj", x))
    torch.testing.assert_close(mlp(x), linear("down_proj", inner))
    assert torch.equal(x, before), "the input belongs to the residual stream"


def test_a_gate_and_an_up_projection_may_be_one_matrix(tmp_path: Path) -> None:
    both, down = random(14, 4, seed=1), random(4, 7, seed=2)
    tensors = {"block__input_linear__weight": both, "block__output_linear__weight": down}
    mlp = Mlp(MlpConfig(7, "silu", True, False), 4, NAMES["granitemoehybrid"], write(tmp_path, **tensors))

    x = random(5, 4, seed=4)
    torch.testing.assert_close(mlp(x), F.linear(F.silu(F.linear(x, both[:7])) * F.linear(x, both[7:]), down))


def test_gate_and_up_are_joined_on_a_device_that_they_are_copied_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {
        "block__gate_proj__weight": random(7, 4, seed=1), "block__gate_proj__bias": random(7, seed=2),
        "block__up_proj__weight": random(7, 4, seed=3), "block__up_proj__bias": random(7, seed=4),
        "block__down_proj__weight": random(4, 7, seed=5), "block__down_proj__bias": random(4, seed=6),
    }  # fmt: skip

    products: list[Linear] = []
    product = Linear.__call__

    def counted(linear: Linear, x: torch.Tensor) -> torch.Tensor:
        products.append(linear)
        return product(linear, x)

    monkeypatch.setattr(Linear, "__call__", counted)
    loader = write(tmp_path, **tensors)
    assert not loader.joins
    assert replace(loader, device=torch.device("cuda")).joins
    x, results, numbers = random(5, 4, seed=9), [], []
    for joins in (False, True):
        monkeypatch.setattr(Loader, "joins", joins)
        mlp = Mlp(MlpConfig(7, "silu", gated=True, bias=True), 4, NAMES["bamba"], loader)
        products.clear()
        results.append(mlp(x))
        numbers.append(len(products))
    torch.testing.assert_close(results[1], results[0])
    assert numbers == [3, 2]


def test_rows_of_a_delta_mixer_are_sorted_by_what_they_are() -> None:
    """Two key heads of 1 with two value heads of 2 each."""
    config = GatedDeltaConfig(4, 2, value_dim=2, key_dim=1, conv_kernel=2, norm_eps=1e-6)
    qkvz, ba = by_kind(config)

    # In the checkpoint: q, k, four rows of v and four of z of the first key head, then those of the second.
    assert qkvz.tolist() == [0, 10, 1, 11, 2, 3, 4, 5, 12, 13, 14, 15, 6, 7, 8, 9, 16, 17, 18, 19]
    assert ba.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


def test_a_layer_names_the_tensor_it_misses_by_its_whole_name(tmp_path: Path) -> None:
    loader = write(tmp_path, block__up_proj__weight=random(7, 4))
    with pytest.raises(WeightsError, match=r"block\.inner\.0\.up_proj\.weight.*missing"):
        loader.at("inner", 0).linear("up_proj", 4, 7, bias=False)
    with pytest.raises(WeightsError, match=r"block\.up_proj\.weight.*\[7, 4\].*\[4, 7\]"):
        loader.linear("up_proj", 7, 4, bias=False)


@pytest.mark.parametrize(
    ("model", "wide"),
    [
        (torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)  # fmt: skip
def test_what_enters_sums_is_never_narrower_than_float32(
    tmp_path: Path, model: torch.dtype, wide: torch.dtype
) -> None:
    save_file({"A_log": torch.tensor([1.0, 2.0])}, tmp_path / "m.safetensors")
    loader = Loader(Weights(tmp_path), CPU, model)
    assert loader.wide("A_log", 2).dtype == wide
    assert loader.tensor("A_log", 2).dtype == model
