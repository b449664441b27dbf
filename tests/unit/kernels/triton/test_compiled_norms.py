"""The norms compile for every GPU we name: nothing spilled, 128 bits a load."""

import pytest
import torch

from compiled_kernel import compiled
from mamba_kernels.gated_norm.triton import call as gated_norm
from mamba_kernels.rms_norm.triton import call as rms_norm


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_norms(capability: int) -> None:
    stream = meta(8, 4096, dtype=torch.float32)
    for call in (
        rms_norm(stream, meta(4096), 1e-5, meta(8, 4096), meta(8, 4096)),
        gated_norm(meta(8, 8192, dtype=torch.float32), meta(8, 8192), meta(8192), 1e-5, 8, meta(8, 8192)),
    ):
        kernel = compiled(call, capability)
        assert kernel.stack == 0
        assert kernel.widest_load == kernel.widest_store == 128
