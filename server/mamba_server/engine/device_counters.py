"""What is counted of a GPU's work while serving, by the names of `EngineStats`: both should stay at 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The engine process imports this before it chooses how threads wait, which torch reads when it is loaded.
    import torch

    from mamba_kernels.dispatch.backend import Backend

Counters = Callable[[], dict[str, float]]


def device_counters(device: torch.device, backend: Backend) -> Counters:
    """Begin to count; nothing where there is no such device and no such compiler."""
    from mamba_kernels.dispatch.backend import TRITON

    counters: dict[str, Callable[[], int]] = {}
    if backend.name == TRITON:
        from mamba_kernels.triton_support.compilations import Compilations

        compilations = Compilations()
        counters["jit_compilations_after_ready_total"] = lambda: compilations.count
    if device.type == "cuda":
        from mamba_server.engine.host_syncs import HostSyncs

        syncs = HostSyncs()
        counters["host_syncs_total"] = lambda: syncs.count
    return lambda: {name: count() for name, count in counters.items()}
