"""Grouped RMS norm with the gate applied before it, as Mamba2 mixers end."""

from mamba_kernels.gated_norm.reference import gated_norm

__all__ = ["gated_norm"]
