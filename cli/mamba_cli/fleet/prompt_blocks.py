"""Prompts of traces with block ids: equal ids stand for equal blocks of tokens. Pure functions."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mamba_cli.bench.trace_units import BLOCK_TOKENS
from mamba_cli.bench.traces import Arrival, TraceError

BLOCK = BLOCK_TOKENS
Tokens = npt.NDArray[np.int32]


def prompt(arrival: Arrival, block: int = BLOCK) -> Tokens:
    """Return the tokens of a prompt, int32[input_tokens]. Only equal blocks have tokens in common.

    Raises ValueError for block ids so large that `numbered` has to number them first.
    """
    if max(arrival.block_ids, default=0) >= 2**31 // block:
        raise ValueError(f"block ids are from 0 to {2**31 // block - 1:,} here: number them first")
    ids = np.array(arrival.block_ids, np.int32)
    tokens: Tokens = (ids[:, None] * np.int32(block) + np.arange(block, dtype=np.int32)).reshape(-1)
    return tokens[: arrival.input_tokens]


def usable(arrivals: Iterable[Arrival], block: int = BLOCK) -> list[Arrival]:
    """Return the arrivals whose block ids cover exactly the whole prompt."""
    return [a for a in arrivals if a.input_tokens > 0 and -(-a.input_tokens // block) == len(a.block_ids)]


def numbered(arrivals: Iterable[Arrival], block: int = BLOCK) -> list[Arrival]:
    """Return the arrivals with block ids numbered in order of appearance.

    Tokens are computed from the ids and have 32 bits, so ids must be small.

    Raises:
        TraceError: The trace has more different blocks than 32 bits can tell apart.
    """
    numbers: dict[int, int] = {}
    result = [
        replace(arrival, block_ids=tuple(numbers.setdefault(i, len(numbers)) for i in arrival.block_ids))
        if arrival.block_ids
        else arrival
        for arrival in arrivals
    ]
    if len(numbers) > (limit := 2**31 // block):
        raise TraceError(
            f"it has {len(numbers):,} different blocks, but at most {limit:,} can be told apart: shorten it"
        )
    return result
