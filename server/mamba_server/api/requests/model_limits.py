"""What the engine said about the model when it became ready, as far as requests are held against it."""

from collections.abc import Collection
from dataclasses import dataclass

from mamba_edge.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """`max_model_len`: tokens of prompt and answer together."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]

    def check_ids(self, param: str, ids: Collection[int]) -> None:
        """Raises InvalidRequest, with `param`, unless the vocabulary has each of them."""
        if ids and (largest := max(ids)) >= self.vocab_size:
            known = f"this model has ids 0 to {self.vocab_size - 1}"
            raise InvalidRequest(f"{param}: token id {largest} is out of range; {known}", param=param)
