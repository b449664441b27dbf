"""The launches of a choice compile for every GPU we name: nothing spilled, 128 bits a load."""

import pytest
import torch

from compiled_kernel import CAPABILITIES, compiled
from mamba_kernels.sample import PenaltyCounts, SampleParameters, TokenChoice
from mamba_kernels.sample.triton import calls

ROWS, VOCABULARY = 8, 131_072


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_sample(capability: int) -> None:
    integers, strength = meta(ROWS, dtype=torch.int32), meta(ROWS)
    parameters = SampleParameters(
        temperature=strength,
        top_k=integers,
        top_p=strength,
        min_p=strength,
        words=meta(ROWS, 2, dtype=torch.int32),
        counts_row=integers,
        repetition=strength,
        presence=strength,
        frequency=strength,
    )
    counts = PenaltyCounts(meta(4, VOCABULARY, dtype=torch.int32), meta(4, VOCABULARY, dtype=torch.bool))
    choice = TokenChoice(meta(ROWS, dtype=torch.int64), meta(ROWS, dtype=torch.bool))
    made = calls(meta(ROWS, VOCABULARY), parameters, counts, integers, choice)
    assert len(made) <= 12
    kernels = [compiled(call, capability) for call in made]
    assert [kernel.stack for kernel in kernels] == [0] * len(made)
    assert [kernel.widest_load for kernel in kernels] == [128] * len(made)
