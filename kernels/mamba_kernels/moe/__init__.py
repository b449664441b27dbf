"""Mixture of experts: which experts a row goes to, and what they make of it."""

from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.reference import moe
from mamba_kernels.moe.routing import Routing, route
from mamba_kernels.moe.shared_expert import SharedExpert

__all__ = ["Activation", "Routing", "SharedExpert", "moe", "route"]
