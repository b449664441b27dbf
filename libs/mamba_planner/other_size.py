"""`OtherSize`: what the planner would choose for the same engine on a GPU with other memory."""

from dataclasses import dataclass
from typing import Any

from mamba_planner.candidates import Candidate
from mamba_settings.byte_size import exact_size


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
