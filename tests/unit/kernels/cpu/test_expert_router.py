"""Rows find their experts in C++ as torch finds them."""

from typing import Any

import pytest
import torch

from mamba_kernels.cpu.expert_router import ExpertRouter
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedWeight
from mamba_kernels.moe import Routing, route

EXPERTS, WIDTH, ROWS = 24, 40, 90
RULES: dict[str, dict[str, Any]] = {
    "softmax of the chosen": {"scores": "softmax", "renormalise": True},
    "softmax of all": {"scores": "softmax", "renormalise": False},
    "sigmoids": {"scores": "sigmoid", "renormalise": False, "scale": 2.5},
    "sigmoids by their sum": {"scores": "sigmoid", "renormalise": True, "scale": 1.7},
    "of the best groups": {"scores": "sigmoid", "renormalise": True, "groups": 4, "kept_groups": 2},
    "groups of one": {"scores": "sigmoid", "renormalise": True, "groups": 24, "kept_groups": 7},
}


def rows(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_experts_and_weights_are_those_of_the_reference(library: Library, rule: str, corrected: bool) -> None:
    if corrected and RULES[rule]["scores"] == "softmax":
        pytest.skip("no family corrects a softmax")
    routing = Routing(top_k=5, **RULES[rule])
    weight, x = rows(1)[:EXPERTS] / WIDTH**0.5, rows(2)
    correction = 0.3 * rows(3)[:EXPERTS, 0].contiguous() if corrected else None
    experts, weights = ExpertRouter(library, PackedWeight(weight), routing, correction)(x)
    expected = route((x.double() @ weight.double().T).float(), routing, correction)
    assert torch.equal(experts, expected[0])
    torch.testing.assert_close(weights, expected[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_of_equal_scores_the_first_comes_first_and_what_is_no_number_before_all(
    library: Library, rule: str
) -> None:
    routing = Routing(top_k=5, **RULES[rule])
    # One input: the weights are the logits of a row of one.
    weight = torch.tensor([[float(i % 3)] for i in range(EXPERTS)])
    x = torch.tensor([[1.0], [0.0], [-1.0], [float("nan")], [1e30]])
    experts, weights = ExpertRouter(library, PackedWeight(weight), routing, None)(x)
    expected = route(x @ weight.T, routing)
    assert torch.equal(experts, expected[0])
    torch.testing.assert_close(weights, expected[1], equal_nan=True)
    assert weights[:3].isfinite().all()
    assert weights[3].isnan().all()


def test_a_row_has_the_same_experts_and_weights_alone(library: Library) -> None:
    router = ExpertRouter(
        library, PackedWeight(rows(1)[:EXPERTS]), Routing(5, **RULES["of the best groups"]), None
    )
    x = rows(4)
    experts, weights = router(x)
    for row in (0, 41, 89):
        alone = router(x[row : row + 1])
        assert torch.equal(alone[0][0], experts[row])
        assert torch.equal(alone[1][0], weights[row])
