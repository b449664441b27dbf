"""`MemoryPlan`: what was chosen for one engine, why, and where every byte goes. Made by the planner alone."""

from dataclasses import dataclass
from typing import Any

from mamba_api.choices import Strategy
from mamba_planner.candidates import Candidate
from mamba_planner.constraints import StateDtype, Workload
from mamba_settings.byte_size import binary_size, exact_size

OUTSIDE = "left outside the arena"
"""The line of the ledger with what of the budget nothing takes."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One use of the budget."""

    item: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """A choice that was not taken, and why, with numbers."""

    strategy: Strategy
    state_dtype: StateDtype
    reason: str


@dataclass(frozen=True, slots=True)
class OtherSize:
    """A size, and either what would be chosen or why nothing fits."""

    memory: int
    """Bytes of that GPU."""
    chosen: Candidate | None
    """None = nothing fits."""
    misfit: str = ""
    """Why nothing fits, with numbers; empty where something does."""

    def to_status(self) -> dict[str, Any]:
        """`status.plan.oneSizeUp` or `oneSizeDown` of a MambaDeployment."""
        told: dict[str, Any] = {"memory": exact_size(self.memory), "fits": self.chosen is not None}
        if (chosen := self.chosen) is None:
            return {**told, "reason": self.misfit}
        return {
            **told,
            "strategy": chosen.strategy,
            "stateDtype": chosen.state_dtype,
            "slots": chosen.slots,
            "pages": chosen.pages,
            "maxRunningRequests": chosen.running,
            "maxModelLen": chosen.max_model_len,
            "checkpoints": chosen.checkpoints,
            "resumed": f"{chosen.saved:.0%}",
        }


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes are bytes on one device, lengths tokens."""

    strategy: Strategy
    state_dtype: StateDtype
    reason: str
    arena_bytes: int
    """`slabs * slab_bytes`."""
    slab_bytes: int
    slabs: int
    """Slab 0, the padding, included."""
    page_size: int
    page_bytes: int
    """0 for a model without attention."""
    pages_per_slab: int
    state_bytes: int
    kv_bytes_per_token: int
    slots: int
    """Slots with `planned_running` sequences: live, tracking and those of checkpoints."""
    pages: int
    """All other slabs, as pages. Slots and pages trade places as the traffic asks."""
    slots_per_sequence: int
    overlap: bool
    """Whether step n+1 is planned while step n runs."""
    max_running_requests: int
    """Sequences of the lengths of `workload` that fit at once, the cache giving way to them: advice. The
    engine runs more where they are shorter and fewer where they are longer."""
    planned_running: int
    """Sequences the ledger is drawn for: the declared concurrency, or the best trade with the cache."""
    max_model_len: int
    checkpoints: int
    """Reusable checkpoints that fit beside the running sequences."""
    binding_constraint: str
    """state slots, kv pages, configured limit, default limit or memory."""
    headroom_bytes: int
    """Budget left beside weights, workspace and the running sequences at full length: the cache's share."""
    expected_saved: float
    """Share of prompt tokens expected to be resumed."""
    workload: Workload
    weights_bytes: int
    budget_bytes: int
    ledger: tuple[LedgerLine, ...]
    """Sums to `budget_bytes`."""
    rejected: tuple[RejectedCandidate, ...]
    notes: tuple[str, ...] = ()
    """What the planner assumed or lowered."""
    one_size_down: OtherSize | None = None
    """On a GPU of the next smaller size; None = there is none, or memory decides nothing."""
    one_size_up: OtherSize | None = None
    """On one of the next larger size."""

    @property
    def unused_bytes(self) -> int:
        """Of the budget, what neither weights, workspace nor arena take."""
        return next(line.bytes for line in self.ledger if line.item == OUTSIDE)

    def to_status(self) -> dict[str, Any]:
        """`status.plan` of a MambaDeployment."""
        sizes = {"oneSizeDown": self.one_size_down, "oneSizeUp": self.one_size_up}
        return {
            "strategy": self.strategy,
            "reason": self.reason,
            "stateDtype": self.state_dtype,
            "slots": self.slots,
            "pages": self.pages,
            "slotsPerSequence": self.slots_per_sequence,
            "maxRunningRequests": self.max_running_requests,
            "bindingConstraint": self.binding_constraint,
            "headroom": binary_size(self.headroom_bytes),
            "ledger": [{"item": line.item, "bytes": line.bytes} for line in self.ledger],
            "rejected": [
                {"strategy": each.strategy, "stateDtype": each.state_dtype, "reason": each.reason}
                for each in self.rejected
            ],
            **{name: size.to_status() for name, size in sizes.items() if size is not None},
        }

    def to_json(self) -> dict[str, Any]:
        """`to_status` and the numbers an engineer wants beside it."""
        return {
            **self.to_status(),
            "arenaBytes": self.arena_bytes,
            "slabBytes": self.slab_bytes,
            "slabs": self.slabs,
            "pageSize": self.page_size,
            "pageBytes": self.page_bytes,
            "pagesPerSlab": self.pages_per_slab,
            "maxModelLen": self.max_model_len,
            "overlap": self.overlap,
            "plannedRunning": self.planned_running,
            "checkpoints": self.checkpoints,
            "expectedSaved": round(self.expected_saved, 4),
            "budgetBytes": self.budget_bytes,
            "workload": {
                "promptTokens": self.workload.prompt_tokens,
                "outputTokens": self.workload.output_tokens,
                "sharedPrefixRatio": self.workload.shared_prefix_ratio,
                "concurrency": self.workload.concurrency,
                "declared": self.workload.declared,
            },
            "notes": list(self.notes),
        }
