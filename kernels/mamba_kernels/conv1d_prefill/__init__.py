"""Causal depthwise convolution over the prefill pieces of a batch."""

from mamba_kernels.conv1d_prefill.reference import conv1d_prefill

__all__ = ["conv1d_prefill"]
