"""One request of a simulated fleet, from its arrival to its end."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mamba_cli.fleet.prompt_blocks import Tokens


@dataclass(slots=True, eq=False)
class Request:
    """Times in seconds of the simulation; `first` and `ended` are None until they are."""

    number: int
    at: float
    prompt: Callable[[], Tokens]
    prompt_tokens: int
    outputs: int
    shared: int = 0
    """Tokens of the prompt that an earlier request began with, too: a cache of everything has them."""
    ids: Tokens | None = None
    """Its tokens, while an engine computes them."""
    allocation: Any = None
    resumed: int = 0
    computed: int = 0
    """Prompt tokens that were computed for it, again after a failure."""
    first: float | None = None
    ended: float | None = None
    engine: str = ""
    ticket: Any = None
    lost: bool = False

    @property
    def token_seconds(self) -> float:
        """Mean time of an output token after the first."""
        if self.first is None or self.ended is None or self.outputs < 2:
            return 0.0
        return (self.ended - self.first) / (self.outputs - 1)
