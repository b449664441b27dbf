"""The norm of the residual stream in one call."""

from collections.abc import Callable

import pytest
import torch

from mamba_kernels.cpu.library import Library
from mamba_kernels.cpu.rms_norm import RowNorm
from mamba_kernels.rms_norm import rms_norm

KINDS = [
    (torch.float32, torch.float32, 2e-6),
    (torch.bfloat16, torch.bfloat16, 2**-7),
    (torch.float32, torch.bfloat16, 2**-7),
]


@pytest.mark.parametrize(("residual", "dtype", "tolerance"), KINDS)
@pytest.mark.parametrize("width", [1, 63, 100, 257])
def test_it_equals_its_definition(
    library: Library, residual: torch.dtype, dtype: torch.dtype, tolerance: float, width: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(70, width + 3, generator=generator).to(residual)[:, :width]
    weight = torch.randn(width, generator=generator).to(dtype)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    got = RowNorm(library, weight, 1e-5)(x)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(RowNorm(library, weight, 1e-5)(x[7:8])[0], got[7])


@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16])
def test_a_float32_weight_is_not_rounded(library: Library, residual: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(70, 63, generator=generator).to(residual)
    weight = 1 + 2e-3 * torch.randn(63, generator=generator)
    got = RowNorm(library, weight, 1e-5, torch.bfloat16)(x)
    assert got.dtype == torch.bfloat16
    # Rounded once: half of the last place.
    exact = rms_norm(x.double(), weight.double(), 1e-5)
    torch.testing.assert_close(got.double(), exact, rtol=2**-8 + 1e-5, atol=1e-6)
    added = torch.randn(70, 63, generator=generator).bfloat16()
    norm = RowNorm(library, weight, 1e-5, torch.bfloat16)
    assert torch.equal(norm(x, added), norm(x))


@pytest.mark.parametrize(("residual", "dtype"), [kinds[:2] for kinds in KINDS])
@pytest.mark.parametrize("width", [1, 63, 257])
def test_what_is_added_goes_into_the_stream_rounded_and_then_through_the_norm(
    library: Library, residual: torch.dtype, dtype: torch.dtype, width: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    stream = torch.randn(70, width + 3, generator=generator).to(residual)
    x, beside = stream[:, :width], stream[:, width:].clone()
    added, weight = (torch.randn(*size, generator=generator).to(dtype) for size in ((70, width), (width,)))
    expected = x + added
    norm = RowNorm(library, weight, 1e-5)
    got = norm(x, added)
    assert torch.equal(x, expected)
    assert torch.equal(got, norm(expected))
    assert torch.equal(stream[:, width:], beside)


@pytest.mark.parametrize(("residual", "dtype"), [kinds[:2] for kinds in KINDS])
@pytest.mark.parametrize("width", [1, 63, 257])
def test_every_instruction_set_gives_the_same_bits(
    assert_same_bits: Callable[..., None], residual: torch.dtype, dtype: torch.dtype, width: int
) -> None:
    generator = torch.Generator().manual_seed(width)
    x = torch.randn(70, width, generator=generator).to(residual)
    added, weight = (torch.randn(*size, generator=generator).to(dtype) for size in ((70, width), (width,)))

    def run(library: Library) -> tuple[torch.Tensor, ...]:
        stream, norm = x.clone(), RowNorm(library, weight, 1e-5)
        return norm(x), norm(stream, added), stream

    assert_same_bits(run)
