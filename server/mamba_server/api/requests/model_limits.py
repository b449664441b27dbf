"""Limits of the model that requests are checked against, as the engine reported them when it became ready."""

from collections.abc import Collection
from dataclasses import dataclass

from mamba_edge.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of one served model."""

    vocab_size: int
    max_model_len: int
    """Maximum number of tokens of prompt and answer together."""
    eos_token_ids: tuple[int, ...]

    def check_ids(self, param: str, ids: Collection[int]) -> None:
        """Check that the vocabulary has all of these ids. Raises InvalidRequest for the field `param`."""
        if ids and (largest := max(ids)) >= self.vocab_size:
            valid = f"this model has ids 0 to {self.vocab_size - 1}"
            raise InvalidRequest(f"{param}: token id {largest} is out of range; {valid}", param=param)
