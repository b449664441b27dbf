"""The activation between the two projections of an expert."""

from enum import StrEnum


class Activation(StrEnum):
    """Activation of an expert with f inner features."""

    GATED_SILU = "gated_silu"
    """silu(gate) * up; the first projection has 2 f outputs, the gate's first (Granite 4, Qwen3-Next)."""
    SQUARED_RELU = "squared_relu"
    """max(up, 0)^2; the first projection has f outputs (Nemotron-H)."""

    @property
    def projections(self) -> int:
        """Outputs of the first projection for each inner feature."""
        return 2 if self is Activation.GATED_SILU else 1
