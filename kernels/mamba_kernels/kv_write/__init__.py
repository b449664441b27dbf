"""Writes new keys and values into their pages."""

from mamba_kernels.kv_write.reference import kv_write

__all__ = ["kv_write"]
