"""`MemoryPlan`: the choice for one engine, its reason, and the use of every byte.

Only the planner creates it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from mamba_api.choices import KvCacheDtype, Role, Strategy
from mamba_planner.candidates import Candidate
from mamba_planner.constraints import StateDtype, Workload
from mamba_settings.byte_size import binary_size, exact_size

OUTSIDE = "left outside the arena"
"""Ledger line for the unused part of the budget."""


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """One use of the memory budget, and its bytes."""

    item: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """A choice that the planner rejected, and why, with numbers."""

    strategy: Strategy
    state_dtype: StateDtype
    reason: str


Tier = Literal["hostMemory", "disk"]


@dataclass(frozen=True, slots=True)
class TierPlan:
    """The budget of one tier of the state cache below the arena, and how many states it holds."""

    tier: Tier
    bytes: int
    """Bytes that the engine may take there."""
    states: int
    """States of the planned lengths, each with its pages, that these bytes hold."""

    def to_status(self) -> dict[str, str | int]:
        """Return the entry of `status.plan.tiers` of a MambaDeployment."""
        return {"tier": self.tier, "bytes": self.bytes, "states": self.states}


@dataclass(frozen=True, slots=True)
class RaisedArena:
    """An arena made larger than configured, since an engine of a pool needs more slots or pages."""

    configured: int
    """Bytes in the settings."""
    arena: int
    """Bytes that are planned in their place."""
    held: int
    """Slots that the configured size holds beside the pages of the same sequences."""
    needed: int
    """Slots that are needed."""
    why: str
    """Sum of the needed slots in words."""
    pages_before: int
    """Pages of the plan with the configured size; 0 if nothing fits it."""
    pages: int
    """Pages of this plan."""

    def words(self) -> str:
        """Return the raise as a sentence without its full stop."""
        return (
            f"the arena of {binary_size(self.configured)} holds {self.held} slots beside their pages, and "
            f"{self.needed} are needed, {self.why}: raised to {binary_size(self.arena)} "
            f"({self.arena:,} bytes), with {self.pages:,} pages instead of {self.pages_before:,}"
        )


@dataclass(frozen=True, slots=True)
class OtherSize:
    """The planner's choice for a GPU of another size, or the reason why nothing fits there."""

    memory: int
    """Bytes of that GPU."""
    chosen: Candidate | None
    """The planner's choice; None if nothing fits."""
    misfit: str = ""
    """Why nothing fits, with numbers; empty if something does."""

    def to_status(self) -> dict[str, Any]:
        """Return `status.plan.oneSizeUp` or `oneSizeDown` of a MambaDeployment."""
        size: dict[str, Any] = {"memory": exact_size(self.memory), "fits": self.chosen is not None}
        if (chosen := self.chosen) is None:
            return {**size, "reason": self.misfit}
        return {
            **size,
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
    """How the memory of one engine is used, as the planner decided.

    Sizes are bytes on one device, lengths are tokens.
    """

    strategy: Strategy
    state_dtype: StateDtype
    reason: str
    arena_bytes: int
    """Bytes of the arena: `slabs * slab_bytes`."""
    slab_bytes: int
    slabs: int
    """Number of slabs, including slab 0, the padding."""
    page_size: int
    page_bytes: int
    """Bytes of a page; 0 for a model without attention."""
    pages_per_slab: int
    state_bytes: int
    kv_bytes_per_token: int
    slots: int
    """Slots with `planned_running` sequences: live, tracking and checkpoint slots."""
    pages: int
    """Pages in all other slabs. At run time, slots and pages exchange slabs according to the traffic."""
    slots_per_sequence: int
    overlap: bool
    """Whether step n+1 is planned while step n runs."""
    max_running_requests: int
    """Number of sequences of the lengths of `workload` that fit at once if the cache is evicted for them. The
    number is advice: the engine runs more if they are shorter and fewer if they are longer."""
    planned_running: int
    """Number of sequences in the ledger: the declared concurrency, or the best trade-off with the cache."""
    max_model_len: int
    checkpoints: int
    """Reusable checkpoints that fit in addition to the running sequences."""
    binding_constraint: str
    """Limit reached first: state slots, kv pages, configured limit, default limit or memory."""
    headroom_bytes: int
    """Bytes of the budget that are left for the cache, after weights, adapters, draft model, workspace,
    padding, and the memory of `planned_running` sequences and of the states that are handed over."""
    expected_saved: float
    """Share of prompt tokens expected to be resumed."""
    workload: Workload
    weights_bytes: int
    budget_bytes: int
    ledger: tuple[LedgerLine, ...]
    """Uses of memory, which add up to `budget_bytes`."""
    rejected: tuple[RejectedCandidate, ...]
    notes: tuple[str, ...] = ()
    """Remarks for people, such as values that the planner assumed, lowered or raised."""
    adapters_bytes: int = 0
    """Bytes of the places for adapters."""
    draft_model_bytes: int = 0
    """Bytes of a second model that drafts, with its states and pages."""
    kv_cache_dtype: KvCacheDtype = "auto"
    """Type of the keys and values in pages; auto = that of the activations."""
    role: Role = "unified"
    receptions: int = 0
    """States that a decode engine receives at once with `planned_running` sequences."""
    exports: int = 0
    """States that a prefill engine keeps for their readers with `planned_running` sequences."""
    raised: RaisedArena | None = None
    """How a configured arena that was too small was raised; None = no arena was raised."""
    tiers: tuple[TierPlan, ...] = ()
    """Tiers below the arena."""
    one_size_down: OtherSize | None = None
    """Choice on a GPU of the next smaller size; None = there is none, or the GPU's memory does not matter."""
    one_size_up: OtherSize | None = None
    """Choice on a GPU of the next larger size; None = there is none, or the GPU's memory does not matter."""

    @property
    def bytes_beside_models(self) -> int:
        """Part of the budget that weights, adapters and a draft model leave to workspace and arena."""
        return self.budget_bytes - self.weights_bytes - self.adapters_bytes - self.draft_model_bytes

    @property
    def unused_bytes(self) -> int:
        """Bytes of the budget that neither the arena nor anything beside it takes."""
        return next(line.bytes for line in self.ledger if line.item == OUTSIDE)

    def to_status(self) -> dict[str, Any]:
        """Return `status.plan` of a MambaDeployment."""
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
                {"strategy": choice.strategy, "stateDtype": choice.state_dtype, "reason": choice.reason}
                for choice in self.rejected
            ],
            **{name: size.to_status() for name, size in sizes.items() if size is not None},
            **self._handed_over(),
            **({"raised": self.raised.words()} if self.raised is not None else {}),
            "tiers": [tier.to_status() for tier in self.tiers],
        }

    def _handed_over(self) -> dict[str, int]:
        match self.role:
            case "decode":
                return {"receiving": self.receptions}
            case "prefill":
                return {"exported": self.exports}
        return {}

    def to_json(self) -> dict[str, Any]:
        """Return `to_status` with further numbers for engineers."""
        return {
            **self.to_status(),
            "role": self.role,
            "arenaBytes": self.arena_bytes,
            "slabBytes": self.slab_bytes,
            "slabs": self.slabs,
            "pageSize": self.page_size,
            "pageBytes": self.page_bytes,
            "kvCacheDtype": self.kv_cache_dtype,
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
