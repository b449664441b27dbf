"""The scales of experts whose weights are FP8."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExpertScales:
    """Scales of the routed experts, by which their FP8 numbers are multiplied; see `Fp8Matrix`."""

    gate_up: torch.Tensor
    """[E, f or 2 f, groups] float32"""
    down: torch.Tensor
    """[E, d_out, groups] float32"""
