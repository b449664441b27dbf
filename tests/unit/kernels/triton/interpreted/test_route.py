"""Triton's choice of experts is the reference's, ties and what is no number included."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from kernel_variants import variants
from mamba_kernels.moe import Routing
from mamba_kernels.moe import route as reference
from mamba_kernels.moe.route_kernel import route_call
from mamba_kernels.moe.triton import route
from mamba_kernels.triton_support import UnsupportedArgument

# Of the interpreter, in arithmetic that is right with infinities.
pytestmark = pytest.mark.filterwarnings(
    "ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning"
)
NAN, INFINITE = float("nan"), float("inf")
RULES = {
    "softmax of the chosen": (72, Routing(10, "softmax", True)),
    "softmax of all": (512, Routing(8, "softmax", False, 0.5)),
    "of few": (3, Routing(3, "softmax", False)),
    "one": (1, Routing(1, "softmax", True)),
    "sigmoids": (64, Routing(6, "sigmoid", False, 2.5)),
    "sigmoids by their sum": (128, Routing(6, "sigmoid", True, 2.5)),
    "of the best groups": (256, Routing(8, "sigmoid", True, 2.5, groups=8, kept_groups=4)),
    "of groups of an odd size": (63, Routing(5, "sigmoid", True, groups=7, kept_groups=3)),
    "groups of one": (24, Routing(5, "sigmoid", True, groups=24, kept_groups=7)),
    "fewer in the groups than are chosen": (12, Routing(5, "sigmoid", True, groups=4, kept_groups=1)),
}


def rows(n: int, experts: int, seed: int = 0) -> torch.Tensor:
    """Return [n, experts] with one more column, as a product that gates a shared expert has."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.full((n, experts + 1), NAN)
    whole[:, :-1] = 2 * torch.randn(n, experts, generator=generator)
    return whole[:, :-1]


def corrections(experts: int, routing: Routing) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(9)
    return [None, *([torch.randn(experts, generator=generator)] if routing.scores == "sigmoid" else [])]


def same(logits: torch.Tensor, routing: Routing, correction: torch.Tensor | None) -> None:
    experts, weights = route(logits, routing, correction)
    expected = reference(logits, routing, correction)
    assert torch.equal(experts, expected[0])
    assert experts.dtype == torch.int32
    torch.testing.assert_close(weights, expected[1], rtol=1e-5, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("rule", RULES)
def test_random_rows_go_where_the_reference_sends_them(rule: str) -> None:
    experts, routing = RULES[rule]
    for correction in corrections(experts, routing):
        same(rows(9, experts), routing, correction)


@pytest.mark.parametrize("rule", RULES)
def test_of_equal_scores_the_first_comes_first(rule: str) -> None:
    experts, routing = RULES[rule]
    coarse = rows(9, experts).round_()
    coarse[0], coarse[1] = 0.0, -200.0
    coarse[2, ::2] = -0.0
    for correction in corrections(experts, routing):
        same(coarse, routing, None if correction is None else correction.round())


@pytest.mark.parametrize("rule", RULES)
def test_what_is_no_number_comes_before_all_and_the_infinite_in_its_place(rule: str) -> None:
    experts, routing = RULES[rule]
    odd = rows(6, experts)
    odd[0, experts // 2] = NAN
    odd[1] = NAN
    odd[2, experts // 3] = INFINITE
    odd[3, ::2] = -INFINITE
    odd[4] = -INFINITE
    odd[5, -1], odd[5, 0] = NAN, INFINITE
    for correction in corrections(experts, routing):
        same(odd, routing, correction)


def test_sums_of_two_equal_groups_keep_the_first_one() -> None:
    routing = Routing(2, "sigmoid", True, groups=4, kept_groups=2)
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 2.0, -9.0, 0.0, 1.0]])
    same(logits, routing, None)
    same(logits.flip(1).contiguous(), routing, None)


def test_a_row_has_the_same_bits_alone() -> None:
    for experts, routing in RULES.values():
        logits = rows(5, experts, seed=3)
        together = route(logits, routing)
        alone = [route(logits[row : row + 1], routing) for row in range(5)]
        assert torch.equal(torch.cat([each for each, _ in alone]), together[0])
        assert torch.equal(torch.cat([each for _, each in alone]), together[1])


def test_all_of_the_result_and_nothing_else_is_written() -> None:
    experts, routing = RULES["of the best groups"]
    logits, k = rows(4, experts), routing.top_k
    chosen, weights = torch.full((6, k), -7, dtype=torch.int32), torch.full((6, k), NAN)
    route_call(logits, routing, None, chosen[1:-1], weights[1:-1]).run()
    expected = reference(logits, routing)
    assert torch.equal(chosen[1:-1], expected[0])
    torch.testing.assert_close(weights[1:-1], expected[1], rtol=1e-5, atol=1e-7)
    assert (chosen[[0, -1]] == -7).all()
    assert weights[[0, -1]].isnan().all()


def test_what_is_compiled_does_not_follow_from_the_number_of_rows() -> None:
    experts, routing = RULES["sigmoids by their sum"]
    router = torch.randn(experts + 1, 8)
    with variants() as seen:
        for n in (1, 2, 5, 33):
            route(F.linear(torch.randn(n, 8), router)[:, :-1], routing)
    assert len(seen) == 1


def test_no_rows_are_no_launch() -> None:
    chosen, weights = route(torch.empty(0, 8), Routing(3, "softmax", True))
    assert chosen.shape == weights.shape == (0, 3)


def test_more_than_a_warp_holds_or_than_there_are_is_left_to_the_reference() -> None:
    routing = Routing(3, "sigmoid", True)
    with pytest.raises(UnsupportedArgument, match=r"1025 experts.*1024 at most"):
        route(torch.zeros(1, 1025), routing)
    with pytest.raises(UnsupportedArgument, match=r"top_k is 3; of 2 experts"):
        route(torch.zeros(1, 2), routing)
    with pytest.raises(ValueError, match="sigmoid"):
        route(torch.zeros(1, 4), replace(routing, scores="softmax"), torch.zeros(4))
