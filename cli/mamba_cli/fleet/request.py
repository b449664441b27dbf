"""One request of a simulated fleet, from its arrival to its end."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mamba_cli.fleet.prompt_blocks import Tokens, prompt
from mamba_cli.fleet.workload import RequestStream
from mamba_server.cache import Export


@dataclass(slots=True, eq=False)
class Request:
    """A request of the simulation, with the times of what happened to it, in seconds.

    `first_token_at` and `ended_at` are None until the event.
    """

    number: int
    arrived_at: float
    prompt: Callable[[], Tokens]
    prompt_tokens: int
    outputs: int
    shared: int = 0
    """Prompt tokens that an earlier request began with, and that an unlimited cache would hold."""
    ids: Tokens | None = None
    """Tokens of the prompt, while an engine computes them."""
    allocation: Any = None
    resumed: int = 0
    computed: int = 0
    """Prompt tokens that engines computed for the request, those repeated after a failure included."""
    first_token_at: float | None = None
    ended_at: float | None = None
    engine: str = ""
    ticket: Any = None
    lost: bool = False
    hand_over: bool = False
    """Whether the engine keeps the state of the prompt for another engine, and writes no answer."""
    export: Export | None = None
    """State that is kept; None if memory was too short for it."""

    @property
    def token_seconds(self) -> float:
        """Mean seconds per output token after the first."""
        if self.first_token_at is None or self.ended_at is None or self.outputs < 2:
            return 0.0
        return (self.ended_at - self.first_token_at) / (self.outputs - 1)


def requests_of(stream: RequestStream) -> list[Request]:
    """Return the requests of a workload, none of which has begun."""
    block, seen, requests = stream.workload.block, set[int](), list[Request]()
    longest = max((arrival.input_tokens for arrival in stream.workload.arrivals), default=1)
    blank = np.zeros(longest, np.int32)
    for number, arrival in enumerate(stream.workload.arrivals):
        shared_blocks = sum(1 for _ in itertools.takewhile(seen.__contains__, arrival.block_ids))
        seen.update(arrival.block_ids)
        ids = (
            partial(prompt, arrival, block)
            if stream.identity
            else partial(_first, blank, arrival.input_tokens)
        )
        shared = min(shared_blocks * block, (arrival.input_tokens - 1) // block * block)
        outputs = max(1, arrival.output_tokens)
        requests.append(Request(number, arrival.at, ids, arrival.input_tokens, outputs, shared))
    return requests


def _first(tokens: Tokens, length: int) -> Tokens:
    return tokens[:length]


@dataclass(slots=True, eq=False)
class RequestTransit:
    """Transit of one request, which ends at second `end` unless it is stretched.

    An event for another `version` of `end` is out of date.
    """

    request: Request
    end: float
    version: int = 0

    def stretch(self, ratio: float, now: float) -> None:
        """Make the rest of the transit after second `now` take `ratio` times as long."""
        self.end = now + (self.end - now) * ratio
        self.version += 1
