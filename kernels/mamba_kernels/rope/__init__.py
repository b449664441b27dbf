"""Rotary positions of queries and keys."""

from mamba_kernels.rope.reference import frequencies, rope, turns

__all__ = ["frequencies", "rope", "turns"]
