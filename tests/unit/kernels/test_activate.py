"""Activations equal their formulas in place, whatever lies beside them."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.activate import Function, activate
from testmodels.functions import FORMULAS


@pytest.mark.parametrize(("function", "formula"), FORMULAS.items())
@pytest.mark.parametrize("multiplied", [False, True])
def test_a_half_of_a_product_becomes_the_formula_of_it_times_the_other_half(
    function: Function, formula: Callable[[torch.Tensor], torch.Tensor], multiplied: bool
) -> None:
    product = 3 * torch.randn(5, 14, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gate, up = product[:, :7], product[:, 7:]
    before = product.clone()
    expected = formula(gate) * up if multiplied else formula(gate)
    activate(gate, function, up if multiplied else None)
    torch.testing.assert_close(gate, expected)
    assert torch.equal(up, before[:, 7:])


def test_every_function_has_its_formula() -> None:
    assert FORMULAS.keys() == set(Function)
