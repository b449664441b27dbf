"""Which instructions compute where nobody chooses them."""

import time

import pytest
import torch

from mamba_kernels.cpu.build import CannotBuild, ensure_built
from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.packed_linear import PackedLinear, PackedWeight

CLEARLY = 1.2
"""Times as quick: less may be the machine's noise, and then either is right."""


def product_seconds(*names: str) -> list[float]:
    """Return the least processor time of a product with as many outputs as a model's, by instruction set."""
    weight = PackedWeight(torch.ones(1024, 512, dtype=torch.bfloat16))
    x = torch.ones(60, 512, dtype=torch.bfloat16)
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
        singles, pairs = product_seconds("avx512", "avx512_bf16")
    except CannotBuild as why:
        pytest.skip(str(why))
    taken = Library(ensure_built()).name
    if taken == "amx_bf16":
        pytest.skip("the matrix unit goes before")
    if max(singles, pairs) < CLEARLY * min(singles, pairs):
        pytest.skip("both are as quick")
    assert taken == ("avx512_bf16" if pairs < singles else "avx512")
