"""Routing and experts say what transformers' modules say, and what each pair of row and expert says alone."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GraniteMoeHybridConfig, NemotronHConfig, Qwen3NextConfig
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite
from transformers.models.nemotron_h import modeling_nemotron_h as nemotron
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from mamba_kernels.moe import Experts, Routing, moe, route
from mamba_kernels.moe.assignment import Assignment, most_blocks
from mamba_kernels.no_sync import no_sync
from testmodels.experts import experts, inputs, pair_by_pair

D, INNER, COUNT, K = 24, 20, 12, 4


def randomised(module: torch.nn.Module) -> Any:
    g = torch.Generator().manual_seed(5)
    module = module.double().eval()
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.copy_(torch.randn(tensor.shape, generator=g, dtype=torch.float64) / 4)
    return module


def rows(n: int = 17) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_granites_layer() -> None:
    config = GraniteMoeHybridConfig(
        hidden_size=D,
        intermediate_size=INNER,
        num_local_experts=COUNT,
        num_experts_per_tok=K,
        mamba_n_heads=6,
    )
    layer = randomised(granite.GraniteMoeHybridMoE(config))
    x = rows()
    # It rounds its router's logits to float32.
    chosen, weights = route((x @ layer.router.weight.T).float(), Routing(K, "softmax_topk"))
    ours = moe(x, chosen, weights, of(layer.experts, gated=True, activation="silu"))
    torch.testing.assert_close(ours, layer(x[None])[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_qwens_layer_without_its_shared_expert(normalize: bool) -> None:
    config = Qwen3NextConfig(
        hidden_size=D, moe_intermediate_size=INNER, num_experts=COUNT, num_experts_per_tok=K,
        norm_topk_prob=normalize,
    )  # fmt: skip
    gate, layer = randomised(qwen.Qwen3NextTopKRouter(config)), randomised(qwen.Qwen3NextExperts(config))
    x = rows()
    chosen, weights = route((x @ gate.weight.T).float(), Routing(K, "softmax", normalize=normalize))
    _, theirs, indices = gate(x)
    ours = moe(x, chosen, weights, of(layer, gated=True, activation="silu"))
    torch.testing.assert_close(ours, layer(x, indices, theirs), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("groups", "of_them"), [(1, 1), (4, 2)])
def test_nemotrons_layer_without_its_shared_expert(groups: int, of_them: int) -> None:
    config = NemotronHConfig(
        hidden_size=D, moe_intermediate_size=INNER, n_routed_experts=COUNT, num_experts_per_tok=K,
        n_group=groups, topk_group=of_them, routed_scaling_factor=2.5, norm_topk_prob=True,
        mlp_hidden_act="relu2",
    )  # fmt: skip
    gate, layer = (
        randomised(nemotron.NemotronHTopkRouter(config)),
        randomised(nemotron.NemotronHExperts(config)),
    )
    x = rows()
    rule = Routing(K, "sigmoid", scale=2.5, groups=groups, groups_per_token=of_them)
    chosen, weights = route(x.float() @ gate.weight.T.float(), rule, gate.e_score_correction_bias)
    _, theirs, indices = gate(x)
    assert [set(each) for each in chosen.tolist()] == [set(each) for each in indices.tolist()]
    wide = Experts(layer.up_proj.data, layer.down_proj.data, "relu2", gated=False)
    torch.testing.assert_close(moe(x, chosen, weights, wide), layer(x, indices, theirs), rtol=1e-5, atol=1e-5)


def of(layer: Any, *, gated: bool, activation: str) -> Experts:
    return Experts(layer.gate_up_proj.data, layer.down_proj.data, activation, gated)


@pytest.mark.parametrize(("n", "k", "count"), [(1, 1, 1), (1, 6, 64), (3, 2, 5), (70, 3, 4), (300, 8, 9)])
@pytest.mark.parametrize(("gated", "activation"), [(True, "silu"), (False, "relu2"), (False, "relu")])
def test_rows_are_the_sums_of_their_pairs(n: int, k: int, count: int, gated: bool, activation: str) -> None:
    weights_of = experts(count, 10, 7, gated=gated, activation=activation)
    x, chosen, weights = inputs(n, k, count, 10)
    with no_sync():
        got = moe(x, chosen, weights, weights_of)
    torch.testing.assert_close(got, pair_by_pair(x, chosen, weights, weights_of), rtol=1e-12, atol=1e-12)


def test_routing_reads_nothing() -> None:
    for rule in (Routing(2, "softmax"), Routing(2, "sigmoid", groups=2, groups_per_token=1)):
        with no_sync():
            route(torch.randn(5, 8), rule, torch.zeros(8))


@given(st.data())
def test_every_pair_has_one_place_in_a_block_of_its_expert(data: st.DataObject) -> None:
    n, k, count = (data.draw(st.integers(1, most)) for most in (40, 4, 12))
    k = min(k, count)
    rows = data.draw(st.sampled_from([1, 2, 16, 64]))
    pick = st.lists(st.integers(0, count - 1), min_size=k, max_size=k, unique=True)
    chosen = torch.tensor(data.draw(st.lists(pick, min_size=n, max_size=n)), dtype=torch.int32)
    places = Assignment.of(chosen, count, rows)
    assert len(places.expert) == most_blocks(n * k, count, rows)
    filled = [pair for pair in places.pair.tolist() if pair >= 0]
    assert sorted(filled) == list(range(n * k))
    flat = chosen.flatten().tolist()
    used = 0
    for block, expert in enumerate(places.expert.tolist()):
        pairs = [pair for pair in places.pair[block * rows : (block + 1) * rows].tolist() if pair >= 0]
        assert {flat[pair] for pair in pairs} == ({expert} if expert >= 0 else set())
        used += expert >= 0
    assert all(expert < 0 for expert in places.expert[used:].tolist())


def test_an_unknown_activation_is_named() -> None:
    x, chosen, weights = inputs(2, 1, 2, 4)
    with pytest.raises(ValueError, match="'tanh'"):
        moe(x, chosen, weights, experts(2, 4, 4, gated=False, activation="tanh"))
