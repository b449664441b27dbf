"""Counters and gauges of a GPU's work while serving, by the names of `EngineStats`.

The counters (waits for the device, late compilations) should stay at 0. Called when the engine boots.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import torch

    from mamba_kernels.dispatch.backend import Backend
    from mamba_server.engine.execution.runner import ModelRunner

Counters = Callable[[], dict[str, float]]
Gauges = Callable[[], dict[str, float]]
SYNC_WARNING = "called a synchronizing CUDA operation"
"""Warning of torch in its debug mode for synchronisations. Waiting for an event, as the stream does, causes
none."""
log = logging.getLogger(__name__)


class HostSyncs:
    """Counter of the places inside a step where the host waits for a CUDA device; one per process.

    torch warns of each, and the first is logged.
    """

    def __init__(self) -> None:
        import torch

        self.count = 0
        warnings.filterwarnings("always", message=SYNC_WARNING)
        show_other = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if SYNC_WARNING not in str(message):
                show_other(message, category, filename, lineno, file, line)
                return
            self.count += 1
            if self.count == 1:
                log.warning(
                    "the host waits for the device at %s:%d: every step pays for it", filename, lineno
                )

        warnings.showwarning = show
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("warn")


def device_counters(device: torch.device, backend: Backend) -> Counters:
    """Start to count; return a function that reads the counters. There are none without a GPU or compiler."""
    from mamba_kernels.dispatch.backend import TRITON

    counters: dict[str, Callable[[], int]] = {}
    if backend.name == TRITON:
        from mamba_kernels.triton_support.compilations import Compilations

        compilations = Compilations()
        counters["jit_compilations_after_ready_total"] = lambda: compilations.count
    if device.type == "cuda":
        syncs = HostSyncs()
        counters["host_syncs_total"] = lambda: syncs.count
    return lambda: {name: count() for name, count in counters.items()}


def device_gauges(runner: ModelRunner, backend: Backend) -> Gauges:
    """Return a function that reads the gauges of prepared decode steps and of kernels that are left out."""

    def gauges() -> dict[str, float]:
        values = {
            f"decode_steps{{kind={kind}}}": float(count) for kind, count in runner.decode_step_counts.items()
        }
        for name, cause in backend.operators.left_out.items():
            values[f"kernels_left_out{{operator={name},cause={cause}}}"] = 1.0
        return values

    return gauges
