"""Chunked state space dual scan over the prefill pieces of a batch."""

from mamba_kernels.ssd_prefill.plan import ChunkPlan
from mamba_kernels.ssd_prefill.reference import ssd_prefill
from mamba_kernels.ssd_prefill.sequential import ssd_sequential

__all__ = ["ChunkPlan", "ssd_prefill", "ssd_sequential"]
