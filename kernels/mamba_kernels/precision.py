"""The type in which sums are kept: float32 for all narrower types, float64 for float64 inputs."""

import torch


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
