"""`WeightsSize`: how large the files of a model are, and what that becomes in memory. Pure.

Read from the files by engines and loaders, used by whoever plans.
"""

from dataclasses import dataclass

from mamba_api.choices import Quantization
from mamba_planner.arithmetic import loaded_bytes


@dataclass(frozen=True, slots=True)
class WeightsSize:
    """Bytes as stored, the number of elements they are, and how many of those are in matrices."""

    bytes: int
    elements: int
    of_matrices: int

    def loaded(self, dtype: str, quantization: Quantization = "none") -> int:
        """Bytes in memory as `dtype`, whatever type the files have."""
        return loaded_bytes(self.elements, self.of_matrices, dtype, quantization)
