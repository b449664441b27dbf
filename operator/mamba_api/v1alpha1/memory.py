"""`spec.memory`: the byte budget of one engine."""

from typing import Annotated

from pydantic import Field

from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel


class Memory(ApiModel):
    """What one engine may take."""

    device_memory: Quantity | None = None
    """Memory of one GPU, such as 80Gi; absent = the node label nvidia.com/gpu.memory, else what the device
    reports."""
    utilization: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Share of the device memory the engine may take for weights, workspace and arena."""
    arena: Quantity | None = None
    """Exact size of the arena that KV pages and state slots share; absent = what the planner computes. On a
    machine without a GPU: how much main memory to use."""
