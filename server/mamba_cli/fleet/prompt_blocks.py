"""Prompts of traces that say which ones begin alike: equal ids are equal blocks of tokens. Pure."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from mamba_cli.bench.traces import Arrival

BLOCK = 512
Tokens = npt.NDArray[np.int32]


def prompt(arrival: Arrival, block: int = BLOCK) -> Tokens:
    """The prompt's tokens, int32[input_tokens]: equal blocks have equal tokens, different ones no token."""
    ids = np.array(arrival.block_ids, np.int32)
    tokens: Tokens = (ids[:, None] * np.int32(block) + np.arange(block, dtype=np.int32)).reshape(-1)
    return tokens[: arrival.input_tokens]


def usable(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Those whose block ids cover the prompt."""
    return [a for a in arrivals if 0 < a.input_tokens <= BLOCK * len(a.block_ids)]
