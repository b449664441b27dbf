"""Memory budget of an engine: from device memory to the bytes the arena may take. Pure.

A GPU's budget is a share of its memory, limited to what is free. On a CPU it is a share of the free memory,
and the arena is limited to a part of it unless the settings name a size: other programs on the machine do not
expect to be pushed out.
"""

from dataclasses import dataclass, replace
from typing import Literal

from mamba_api.v1alpha1 import TieredStateCache
from mamba_planner.adapter_bank import bank_bytes, step_bytes
from mamba_planner.arithmetic import weights_bytes
from mamba_planner.constraints import Constraints
from mamba_planner.draft_models import draft_model_memory, draft_workspace
from mamba_planner.errors import InsufficientMemory
from mamba_planner.model_config import ModelConfig
from mamba_planner.workspace import CHUNK, captured_bytes, draft_bytes, ring_bytes, workspace_bytes
from mamba_settings.byte_size import binary_size

RUNTIME_BYTES = {"cuda": 768 << 20, "cpu": 128 << 20}
"""Bytes the process takes before any tensor. On a GPU: the context, library workspaces, captured graphs
without their logits, and the table of all pages (12 MiB for 200 sequences of 262,144 tokens)."""
CPU_ARENA_PART = 4
"""Divisor of the free memory that gives the largest arena on a CPU, unless the settings name a size."""
TIER_STAGING_BYTES = 256 << 20
"""Main memory of an engine with lower tiers for states on their way there, beside the tier of host memory."""
MOST_RUNNING = {"cuda": 1024, "cpu": 32}
"""Default for the largest batch that is planned for, by device."""


@dataclass(frozen=True, slots=True)
class Device:
    """Device that the engine runs on. `memory` is the bytes of one GPU, or the free bytes of the machine."""

    kind: Literal["cuda", "cpu"]
    memory: int
    declared: bool = True
    """Whether the settings name the memory; False = measured, so that a CPU arena is kept small."""
    free: int | None = None
    """Bytes of a GPU that no other process holds; None = all of them."""

    def resized(self, memory: int) -> "Device":
        """Return the same device with `memory` bytes, of which other processes hold as many as here."""
        free = None if self.free is None else max(memory - (self.memory - self.free), 0)
        return replace(self, memory=memory, free=free)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """How the memory of one device is divided.

    `total` = weights + adapters + draft model + workspace + the arena's part.
    """

    device: Device
    total: int
    """Bytes that the engine may take."""
    weights: int
    """Bytes of the weights."""
    workspace: int
    """Bytes that the largest step takes besides weights and arena."""
    arena: int
    """Maximum bytes of the arena."""
    arena_limited: bool
    """Whether the arena may be smaller than the memory that is left, to spare a machine without a GPU."""
    adapters: int = 0
    """Bytes of the places for adapters."""
    draft_model: int = 0
    """Bytes of a second model that drafts, with its states and pages."""

    @property
    def fixed(self) -> int:
        """Bytes that are taken whatever the arena's size: weights, adapters, draft model and workspace."""
        return self.weights + self.adapters + self.draft_model + self.workspace

    def fixed_in_words(self, joint: str = ", ") -> str:
        """Return the parts of `fixed` for people; `joint` stands before the last one."""
        adapters = f", places for adapters {binary_size(self.adapters)}" if self.adapters else ""
        draft = f", draft model {binary_size(self.draft_model)}" if self.draft_model else ""
        return (
            f"weights {binary_size(self.weights)}{adapters}{draft}{joint}workspace "
            f"{binary_size(self.workspace)}"
        )

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        constraints: Constraints,
        device: Device,
        weights: int | None = None,
        workspace: int | None = None,
    ) -> "MemoryBudget":
        """Compute the budget of a device.

        With `constraints.arena_bytes` the budget is what that arena needs; only measured main memory is
        compared with it.

        Args:
            model: the model.
            constraints: the engine's settings.
            device: the device and its memory.
            weights: true bytes on one device; None = by parameter count.
            workspace: measured bytes of the largest step; None = by arithmetic.

        Raises:
            InsufficientMemory: weights and workspace alone are too large, or this machine has no room for the
                arena in addition.
        """
        dtype = constraints.dtype or model.dtype
        ways = constraints.tensor_parallel
        if weights is None:
            on_cpu = device.kind == "cpu"
            weights = weights_bytes(model, dtype, ways, constraints.quantization, on_cpu=on_cpu)
        adapters = bank_bytes(
            model, dtype, places=constraints.adapters, rank=constraints.adapter_rank,
            expert_rank=constraints.adapter_expert_rank,
        )  # fmt: skip
        draft_model = 0
        workspace = _workspace(model, dtype, constraints, device, workspace)
        if (draft := model.draft_model) is not None:
            running = constraints.max_running_requests or MOST_RUNNING[device.kind]
            memory_of_draft = draft_model_memory(model, draft, constraints, device.kind, running)
            draft_model = memory_of_draft.bytes
            of_step = draft_workspace(draft, memory_of_draft, device.kind) + RUNTIME_BYTES[device.kind]
            workspace = max(workspace, of_step)
        fixed = cls(device, 0, weights, workspace, 0, False, adapters, draft_model)
        memory, of_memory = _memory_above_tiers(device, constraints)
        if (arena := constraints.arena_bytes) is not None:
            total = fixed.fixed + arena
            if device.kind == "cpu" and not device.declared and total > memory:
                # The kernel would overcommit, and kill this process or another one when the memory is used.
                raise InsufficientMemory(
                    f"{fixed.fixed_in_words()} and the arena of {binary_size(arena)} need "
                    f"{binary_size(total)} of main memory, of which {of_memory} are free",
                    need=total,
                    have=memory,
                )
            return replace(fixed, total=total, arena=arena)
        share = int(memory * constraints.utilization)
        total = share if device.free is None else min(share, device.free)
        if (rest := total - fixed.fixed) <= 0:
            raise InsufficientMemory(
                f"{fixed.fixed_in_words(' and ')} need {binary_size(fixed.fixed)}; {of_memory} at "
                f"utilization {constraints.utilization:g} gives {binary_size(total)}"
                f"{' because other processes hold memory of this GPU' if total < share else ''}"
                f"{'; fewer --max-loras or a smaller --max-lora-rank need less' if adapters else ''}",
                need=fixed.fixed,
                have=total,
            )
        limited = device.kind == "cpu" and not device.declared
        return replace(fixed, total=total, arena=rest, arena_limited=limited)


def _workspace(
    model: ModelConfig, dtype: str, constraints: Constraints, device: Device, workspace: int | None
) -> int:
    """Return the bytes that an engine needs beside weights, adapters and arena.

    `workspace` is the measured bytes of the largest step; None = by arithmetic.
    """
    ways = constraints.tensor_parallel
    if workspace is None:
        workspace = workspace_bytes(
            model,
            dtype,
            tokens=constraints.chunked_prefill_tokens,
            running=constraints.max_running_requests or MOST_RUNNING[device.kind],
            longest=constraints.max_model_len or model.max_position,
            chunk=CHUNK[device.kind],
            tensor_parallel=ways,
            kv_cache_dtype=constraints.kv_cache_dtype,
        )
    running = constraints.max_running_requests or MOST_RUNNING[device.kind]
    workspace += RUNTIME_BYTES[device.kind]
    workspace += draft_bytes(
        model, dtype, drafts=constraints.draft_tokens, running=running, tensor_parallel=ways
    )
    workspace += ring_bytes(
        model, dtype, tokens=constraints.ring_tokens, running=running, tensor_parallel=ways
    )
    if device.kind == "cuda":
        workspace += captured_bytes(model, dtype, ways)
    return workspace + step_bytes(
        model,
        dtype,
        device=device.kind,
        places=constraints.adapters,
        rank=constraints.adapter_rank,
        expert_rank=constraints.adapter_expert_rank,
    )


def _memory_above_tiers(device: Device, constraints: Constraints) -> tuple[int, str]:
    """Return the device memory without the tier of host memory that is part of it, and the same in words."""
    memory, in_words = device.memory, binary_size(device.memory)
    if (constraints.host_memory or constraints.disk) and device.kind == "cpu" and not device.declared:
        tiers = constraints.host_memory + TIER_STAGING_BYTES
        memory -= tiers
        in_words += f" less {binary_size(tiers)} of host memory for states"
    return memory, in_words


def tier_memory(cache: TieredStateCache) -> int:
    """Return the bytes of main memory that an engine takes for lower tiers, with their staging memory."""
    if cache.host_memory is None and cache.disk is None:
        return 0
    return TIER_STAGING_BYTES + (cache.host_memory.bytes if cache.host_memory is not None else 0)
