"""Copies of whole slots from one arena to another, or within one."""

from mamba_kernels.slot_copy.reference import slot_copy

__all__ = ["slot_copy"]
