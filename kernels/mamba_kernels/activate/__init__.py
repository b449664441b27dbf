"""The activation between two projections, and its product with a factor such as a gated half."""

from mamba_kernels.activate.function import Function
from mamba_kernels.activate.reference import activate

__all__ = ["Function", "activate"]
