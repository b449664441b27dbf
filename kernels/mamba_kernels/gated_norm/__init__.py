"""Grouped RMS norm with a gate before or after it: the last step of the recurrent mixers."""

from mamba_kernels.gated_norm.reference import gated_norm

__all__ = ["gated_norm"]
