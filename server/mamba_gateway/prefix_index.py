"""What the gateway asks of the index of resumable prefixes: which engine can resume how much of a prompt.

The engines publish it; whoever follows them fits this face. Without one the gateway goes by what it sent
where.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mamba_prefix.prefix_index import State


class PrefixIndex(Protocol):
    """A local copy; asked for each request, so it does no I/O."""

    @property
    def state(self) -> State:
        """off: there is none; following: up to date; else its answers are old or none."""

    def resumable(self, token_ids: NDArray[np.int32], salt: str) -> Mapping[str, int]:
        """By engine (name of its endpoint): tokens of the prompt that it can resume."""


class NoIndex:
    """Nothing is published."""

    state: State = "off"

    def resumable(self, token_ids: NDArray[np.int32], salt: str) -> Mapping[str, int]:
        """Nobody can resume anything, as far as is known."""
        return {}
