"""Attention over paged keys and values: decoding rows and prefill pieces with context."""

from mamba_kernels.paged_attention.plan import AttentionPlan
from mamba_kernels.paged_attention.reference import paged_attention

__all__ = ["AttentionPlan", "paged_attention"]
