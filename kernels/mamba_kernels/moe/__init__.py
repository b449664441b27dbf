"""A mixture of experts: which experts a row goes to, and what they make of it."""

from mamba_kernels.moe.experts import Experts
from mamba_kernels.moe.reference import moe
from mamba_kernels.moe.routing import Routing, route

__all__ = ["Experts", "Routing", "moe", "route"]
