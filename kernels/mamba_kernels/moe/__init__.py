"""Mixture of experts: the choice of experts for each row, and their weighted results."""

from mamba_kernels.moe.activation import Activation
from mamba_kernels.moe.expert_weights import ExpertWeights
from mamba_kernels.moe.reference import moe
from mamba_kernels.moe.routing import Routing, route
from mamba_kernels.moe.shared_expert import SharedExpert

__all__ = ["Activation", "ExpertWeights", "Routing", "SharedExpert", "moe", "route"]
