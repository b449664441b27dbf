"""`spec.resources`: what each engine pod asks the cluster for."""

from typing import Annotated

from pydantic import Field

from mamba_api.quantity import Quantity
from mamba_api.v1alpha1.base import ApiModel


class Resources(ApiModel):
    """Requests and limits of the engine container."""

    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each engine pod; 0 = serve on the CPU."""
    gpu_resource: Annotated[
        str, Field(min_length=1, max_length=316, pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    ] = "nvidia.com/gpu"  # fmt: skip
    """Extended resource that stands for one GPU."""
    cpu: Quantity | None = None
    """CPU cores the engine container asks for; absent = no request."""
    memory: Quantity | None = None
    """Main memory the engine container asks for and is limited to; absent = no request and no limit."""
