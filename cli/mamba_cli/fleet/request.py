"""One request of a simulated fleet, from its arrival to its end."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mamba_cli.fleet.prompt_blocks import Tokens, prompt
from mamba_cli.fleet.workload import RequestStream


@dataclass(slots=True, eq=False)
class Request:
    """Times in seconds of the simulation; `first_token_at` and `ended_at` are None until then."""

    number: int
    arrived_at: float
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
    first_token_at: float | None = None
    ended_at: float | None = None
    engine: str = ""
    ticket: Any = None
    lost: bool = False

    @property
    def token_seconds(self) -> float:
        """Mean time of an output token after the first."""
        if self.first_token_at is None or self.ended_at is None or self.outputs < 2:
            return 0.0
        return (self.ended_at - self.first_token_at) / (self.outputs - 1)


def requests_of(stream: RequestStream) -> list[Request]:
    """The requests of a workload, none of them begun."""
    block, seen, made = stream.workload.block, set[int](), list[Request]()
    longest = max((arrival.input_tokens for arrival in stream.workload.arrivals), default=1)
    blank = np.zeros(longest, np.int32)
    for number, arrival in enumerate(stream.workload.arrivals):
        known = sum(1 for _ in itertools.takewhile(seen.__contains__, arrival.block_ids))
        seen.update(arrival.block_ids)
        ids = (
            partial(prompt, arrival, block)
            if stream.identity
            else partial(_first, blank, arrival.input_tokens)
        )
        shared = min(known * block, (arrival.input_tokens - 1) // block * block)
        outputs = max(1, arrival.output_tokens)
        made.append(Request(number, arrival.at, ids, arrival.input_tokens, outputs, shared))
    return made


def _first(tokens: Tokens, length: int) -> Tokens:
    return tokens[:length]
