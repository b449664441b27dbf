"""Tolerance of a kernel's float32 sums against a float64 reference."""

import copy

import torch

from testmodels.chunks import Mixer


def close(actual: torch.Tensor, expected: torch.Tensor, sums: float = 1.0) -> None:
    """Assert equality up to the rounding of `actual` and of float32, `sums` times more for long sums.

    Eight steps, since the interpreter narrows by truncation."""
    step = max(torch.finfo(actual.dtype).eps, 4 * torch.finfo(torch.float32).eps) * sums
    torch.testing.assert_close(actual.double(), expected.double(), rtol=8 * step, atol=8 * step)


def wide(mixer: Mixer) -> Mixer:
    """Return the same numbers in float64."""
    result = copy.copy(mixer)
    for name in ("x", "dt", "B", "C", "A", "D", "dt_bias"):
        setattr(result, name, getattr(mixer, name).double())
    return result
