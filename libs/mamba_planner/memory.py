"""From device memory to the bytes the arena may take: the ledger above the arena. Pure.

A GPU's budget is a share of its memory, and no more than is free. On a CPU it is a share of the memory that
is free, and the arena is kept to a part of it unless someone asked for more: nothing else on the machine
expects to be pushed out.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mamba_planner.arithmetic import weights_bytes
from mamba_planner.constraints import Constraints
from mamba_planner.errors import InsufficientMemory
from mamba_planner.model_config import ModelConfig
from mamba_planner.workspace import CHUNK, captured_bytes, workspace_bytes
from mamba_settings.byte_size import binary_size

RUNTIME_BYTES = {"cuda": 768 << 20, "cpu": 128 << 20}
"""What the process takes before any tensor: on a GPU the context, library workspaces, captured graphs but for
their logits, and the table of all pages (12 MiB for 200 sequences of 262,144 tokens)."""
CPU_ARENA_PART = 4
"""A CPU's arena takes at most one part in so many of the free memory, unless someone asked for more."""
MOST_RUNNING = {"cuda": 1024, "cpu": 32}
"""Largest batch planned for when nobody asked for one."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where the engine runs. `memory`: bytes of one GPU, or the free bytes of the machine."""

    kind: Literal["cuda", "cpu"]
    memory: int
    told: bool = True
    """Whether someone named the memory; False = measured, so a CPU arena is kept small."""
    free: int | None = None
    """Bytes of a GPU that nobody else has; None = all of them."""

    def resized(self, memory: int) -> "Device":
        """The same with `memory` bytes, of which others hold as many as here."""
        free = None if self.free is None else max(memory - (self.memory - self.free), 0)
        return replace(self, memory=memory, free=free)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """`total` = weights + workspace + what the arena may take."""

    device: Device
    total: int
    weights: int
    workspace: int
    arena: int
    """Most bytes for the arena."""
    arena_limited: bool
    """The arena may be smaller than what is left, to spare a machine without a GPU."""

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        constraints: Constraints,
        device: Device,
        weights: int | None = None,
        workspace: int | None = None,
    ) -> "MemoryBudget":
        """Work out the budget. `weights`: true bytes on one device; None = by parameter count. `workspace`:
        what the worst step was seen to take; None = by arithmetic.

        With `constraints.arena_bytes` the budget is what that arena needs, and only main memory that was
        measured is looked at. Raises `InsufficientMemory` when weights and workspace alone are too much, or
        when this machine has no room for the arena beside them.
        """
        dtype = constraints.dtype or model.dtype
        ways = constraints.tensor_parallel
        held = weights_bytes(model, dtype, ways, constraints.quantization) if weights is None else weights
        if workspace is None:
            workspace = workspace_bytes(
                model,
                dtype,
                tokens=constraints.chunked_prefill_tokens,
                running=constraints.max_running_requests or MOST_RUNNING[device.kind],
                longest=constraints.max_model_len or model.max_position,
                chunk=CHUNK[device.kind],
                tensor_parallel=ways,
            )
        workspace += RUNTIME_BYTES[device.kind]
        if device.kind == "cuda":
            workspace += captured_bytes(model, dtype, ways)
        if (arena := constraints.arena_bytes) is not None:
            total = held + workspace + arena
            if device.kind == "cpu" and not device.told and total > device.memory:
                # The kernel would promise it, and end this process or another one when it is touched.
                raise InsufficientMemory(
                    f"weights {binary_size(held)}, workspace {binary_size(workspace)} and the arena of "
                    f"{binary_size(arena)} need {binary_size(total)} of main memory, of which "
                    f"{binary_size(device.memory)} are free",
                    need=total,
                    have=device.memory,
                )
            return cls(device, total, held, workspace, arena, arena_limited=False)
        share = int(device.memory * constraints.utilization)
        total = share if device.free is None else min(share, device.free)
        if (left := total - held - workspace) <= 0:
            raise InsufficientMemory(
                f"weights {binary_size(held)} and workspace {binary_size(workspace)} need "
                f"{binary_size(held + workspace)}; {binary_size(device.memory)} at utilization "
                f"{constraints.utilization:g} gives {binary_size(total)}"
                f"{' and others hold memory of it' if total < share else ''}",
                need=held + workspace,
                have=total,
            )
        limited = device.kind == "cpu" and not device.told
        return cls(device, total, held, workspace, left, arena_limited=limited)
