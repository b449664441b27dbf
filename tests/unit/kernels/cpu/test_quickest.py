"""Which instructions compute where nobody chooses them."""

import time
from collections.abc import Callable

import pytest
import torch

from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedMatrix, PackedWeight
from mamba_kernels.cpu.quantized.int4_weight import Int4Weight
from mamba_kernels.cpu.quantized.int8_weight import QuantizedWeight

INPUTS = 512
MATRIX = torch.ones(1024, INPUTS, dtype=torch.bfloat16)
"""Weight with as many outputs as a model's."""
CLEARLY = 1.2
"""Times as quick: less may be the machine's noise, and then either is right."""


def product_seconds(weight: PackedMatrix, rows: int, *names: str) -> list[float]:
    """Return the least processor time of a product with `weight`, by instruction set."""
    x = torch.ones(rows, INPUTS, dtype=torch.bfloat16)
    least = [float("inf")] * len(names)
    for _ in range(20):
        for place, name in enumerate(names):
            product = PackedLinear(Library(ensure_built(), name), weight, None)
            begin = time.thread_time()
            product(x)
            least[place] = min(least[place], time.thread_time() - begin)
    return least


def test_the_quicker_way_to_multiply_bfloat16_is_taken() -> None:
    try:
        singles, pairs = product_seconds(PackedWeight(MATRIX), 60, "avx512", "avx512_bf16")
    except CannotBuild as why:
        pytest.skip(str(why))
    taken = Library(ensure_built()).name
    if taken == "amx_bf16":
        pytest.skip("the matrix unit goes before")
    if max(singles, pairs) < CLEARLY * min(singles, pairs):
        pytest.skip("both are as quick")
    assert taken == ("avx512_bf16" if pairs < singles else "avx512")


@pytest.mark.parametrize("form", [Int4Weight, QuantizedWeight], ids=["int4", "int8"])
def test_the_matrix_unit_does_not_slow_a_few_rows_down(form: Callable[[torch.Tensor], PackedMatrix]) -> None:
    """Tiles that are half empty took up to twice as long as lanes."""
    weight = form(MATRIX)
    for rows in (5, 8, 17):
        try:
            unit, lanes = product_seconds(weight, rows, "amx_bf16", "avx512_bf16")
        except CannotBuild as why:
            pytest.skip(str(why))
        assert unit < CLEARLY * lanes, rows
