"""Routing and experts equal the modules of transformers; a row's bits do not depend on its neighbours."""

from typing import Any

import pytest
import torch

from mamba_kernels.moe import Activation, Routing, SharedExpert, moe, route
from testmodels.chunks import poisoned
from testmodels.experts import ExpertBatch
from testmodels.no_sync import no_sync

N, D, E, K, F = 23, 32, 16, 4, 24


def module(made: torch.nn.Module) -> Any:
    """Return the module in float64 with random weights, including routers and corrections."""
    generator = torch.Generator().manual_seed(1)
    for each in [*made.parameters(), *made.buffers()]:
        each.data = torch.randn(each.shape, generator=generator, dtype=torch.float64) * 0.2
    return made


def rows(seed: int = 0) -> torch.Tensor:
    return torch.randn(N, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mixed(x: torch.Tensor, routed: tuple[torch.Tensor, torch.Tensor], *more: Any) -> torch.Tensor:
    experts, weights = routed
    gate_up, down, activation, shared = more
    out = poisoned(N, D)
    moe(x, experts, weights, gate_up, down, activation, out, shared)
    return out


def test_granite_takes_the_softmax_of_the_chosen_and_adds_a_shared_expert() -> None:
    from transformers import GraniteMoeHybridConfig
    from transformers.models.granitemoehybrid import modeling_granitemoehybrid as granite

    config = GraniteMoeHybridConfig(
        hidden_size=D,
        intermediate_size=F,
        num_local_experts=E,
        mamba_n_heads=4,
        num_experts_per_tok=K,
        shared_intermediate_size=2 * F,
    )
    routed, shared, x = (
        module(granite.GraniteMoeHybridMoE(config)),
        module(granite.GraniteMoeHybridMLP(config)),
        rows(),
    )
    logits = x @ routed.router.weight.T
    experts = routed.experts
    got = mixed(
        x,
        route(logits, Routing(K, "softmax", renormalise=True)),
        experts.gate_up_proj,
        experts.down_proj,
        Activation.GATED_SILU,
        SharedExpert(shared.input_linear.weight, shared.output_linear.weight),
    )
    # Its router rounds logits to float32.
    torch.testing.assert_close(got, routed(x[None])[0] + shared(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("renormalise", [True, False])
def test_qwen_gates_its_shared_expert(renormalise: bool) -> None:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    config = Qwen3NextConfig(
        hidden_size=D,
        moe_intermediate_size=F,
        shared_expert_intermediate_size=2 * F,
        num_experts=E,
        num_experts_per_tok=K,
        norm_topk_prob=renormalise,
    )
    block, x = module(qwen.Qwen3NextSparseMoeBlock(config)), rows()
    shared = block.shared_expert
    got = mixed(
        x,
        route(x @ block.gate.weight.T, Routing(K, "softmax", renormalise=renormalise)),
        block.experts.gate_up_proj,
        block.experts.down_proj,
        Activation.GATED_SILU,
        SharedExpert(
            torch.cat([shared.gate_proj.weight, shared.up_proj.weight]),
            shared.down_proj.weight,
            (x @ block.shared_expert_gate.weight.T)[:, 0],
        ),
    )
    torch.testing.assert_close(got, block(x[None])[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2)])
@pytest.mark.parametrize("renormalise", [True, False])
def test_nemotron_corrects_its_sigmoids_and_limits_groups(groups: int, kept: int, renormalise: bool) -> None:
    from transformers import NemotronHConfig
    from transformers.models.nemotron_h import modeling_nemotron_h as nemotron

    config = NemotronHConfig(
        hidden_size=D,
        moe_intermediate_size=F,
        moe_shared_expert_intermediate_size=2 * F,
        n_routed_experts=E,
        num_experts_per_tok=K,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=renormalise,
        routed_scaling_factor=2.5,
    )
    block, x = module(nemotron.NemotronHMoE(config)), rows()
    routing = Routing(K, "sigmoid", renormalise=renormalise, scale=2.5, groups=groups, kept_groups=kept)
    got = mixed(
        x,
        route(x @ block.gate.weight.T, routing, block.gate.e_score_correction_bias),
        block.experts.up_proj,
        block.experts.down_proj,
        Activation.SQUARED_RELU,
        SharedExpert(block.shared_experts.up_proj.weight, block.shared_experts.down_proj.weight),
    )
    torch.testing.assert_close(got, block(x[None])[0], rtol=1e-5, atol=1e-6)


def test_experts_of_groups_that_are_not_chosen_stay_out_though_all_scores_are_negative() -> None:
    """Megatron-LM and transformers exclude them; the file published with Nemotron 3 counts them as 0."""
    routing = Routing(2, "sigmoid", renormalise=False, groups=2, kept_groups=1)
    logits = torch.tensor([[0.1, 0.2, -0.3, -0.4]])
    experts, _ = route(logits, routing, torch.full((4,), -2.0))
    assert sorted(experts[0].tolist()) == [0, 1]


def test_of_equal_scores_the_first_expert_is_chosen() -> None:
    experts, weights = route(torch.zeros(3, E), Routing(K, "softmax", renormalise=False))
    assert experts.tolist() == [list(range(K))] * 3
    assert experts.dtype == torch.int32
    assert weights.tolist() == [[1 / E] * K] * 3


def test_sigmoids_that_vanish_are_still_divided() -> None:
    _, weights = route(torch.full((2, E), -200.0), Routing(K, "sigmoid", renormalise=True))
    assert not weights.any()


def test_a_softmax_has_no_correction_and_no_groups() -> None:
    with pytest.raises(ValueError, match="sigmoid"):
        route(torch.zeros(1, E), Routing(K, "softmax", renormalise=True), torch.zeros(E))
    with pytest.raises(ValueError, match="sigmoid"):
        route(torch.zeros(1, E), Routing(K, "softmax", renormalise=True, groups=2))


@pytest.mark.parametrize("activation", Activation)
@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_experts_equal_their_definition(n: int, k: int, activation: Activation) -> None:
    batch = ExpertBatch(n, E=9, k=k, d=13, f=7, activation=activation, shared_f=11)
    torch.testing.assert_close(batch.run(moe), batch.expected(), rtol=1e-12, atol=1e-12)


def test_sums_of_bfloat16_are_wide() -> None:
    batch = ExpertBatch(30, dtype=torch.bfloat16)
    torch.testing.assert_close(batch.run(moe).double(), batch.expected(), rtol=2**-8, atol=1e-5)


def test_a_row_without_experts_becomes_zero_whatever_it_holds() -> None:
    batch = ExpertBatch(6)
    before = batch.run(moe)
    batch.experts[2], batch.hidden[2] = -1, float("nan")
    after = batch.run(moe)
    assert not after[2].any()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_alone_and_among_others(dtype: torch.dtype) -> None:
    batch = ExpertBatch(70, d=96, f=40, dtype=dtype, shared_f=48)
    together = batch.run(moe)
    assert batch.shared is not None
    assert batch.shared.logit is not None
    for row in range(0, 70, 7):
        alone, one = ExpertBatch(1, d=96, f=40, dtype=dtype), slice(row, row + 1)
        alone.hidden, alone.experts, alone.weights = batch.hidden[one], batch.experts[one], batch.weights[one]
        alone.gate_up, alone.down = batch.gate_up, batch.down
        alone.shared = SharedExpert(batch.shared.gate_up, batch.shared.down, batch.shared.logit[one])
        assert torch.equal(alone.run(moe)[0], together[row])


def test_a_choice_has_the_same_bits_alone_and_among_others() -> None:
    logits = torch.randn(64, 128, generator=torch.Generator().manual_seed(2))
    rules = [
        (Routing(8, "softmax", renormalise=True), None),
        (Routing(6, "sigmoid", renormalise=True, scale=2.5, groups=8, kept_groups=4), torch.randn(128)),
    ]
    for rule, correction in rules:
        experts, weights = route(logits, rule, correction)
        for row in range(0, 64, 9):
            one, its = route(logits[row : row + 1], rule, correction)
            assert torch.equal(one[0], experts[row])
            assert torch.equal(its[0], weights[row])


def test_nothing_is_read_by_the_host() -> None:
    batch, logits = ExpertBatch(40, shared_f=8), torch.randn(40, E)
    with no_sync():
        batch.run(moe)
        route(logits, Routing(K, "softmax", renormalise=False))
        route(logits, Routing(K, "sigmoid", True, groups=4, kept_groups=2), torch.zeros(E))
