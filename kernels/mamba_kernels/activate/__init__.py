"""The activation between two projections, and the product with what a gate opens."""

from mamba_kernels.activate.function import Function
from mamba_kernels.activate.reference import activate

__all__ = ["Function", "activate"]
