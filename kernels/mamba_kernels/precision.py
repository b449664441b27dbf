"""The type sums are kept in: float32 for everything narrower, float64 when the input is float64."""

import torch


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
