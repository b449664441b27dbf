"""Prompts of traces that say which ones begin alike: equal ids are equal blocks of tokens. Pure."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mamba_cli.bench.trace_units import BLOCK_TOKENS
from mamba_cli.bench.traces import Arrival, TraceError

BLOCK = BLOCK_TOKENS
Tokens = npt.NDArray[np.int32]


def prompt(arrival: Arrival, block: int = BLOCK) -> Tokens:
    """The prompt's tokens, int32[input_tokens]: equal blocks have equal tokens, different ones no token."""
    if max(arrival.block_ids, default=0) >= 2**31 // block:
        raise ValueError(f"block ids are from 0 to {2**31 // block - 1:,} here: number them first")
    ids = np.array(arrival.block_ids, np.int32)
    tokens: Tokens = (ids[:, None] * np.int32(block) + np.arange(block, dtype=np.int32)).reshape(-1)
    return tokens[: arrival.input_tokens]


def usable(arrivals: Iterable[Arrival], block: int = BLOCK) -> list[Arrival]:
    """Return those whose block ids are those of the whole prompt, and of nothing more."""
    return [a for a in arrivals if a.input_tokens > 0 and -(-a.input_tokens // block) == len(a.block_ids)]


def numbered(arrivals: Iterable[Arrival], block: int = BLOCK) -> list[Arrival]:
    """Number the block ids as they come: any two ids are equal afterwards if they were before.

    Tokens are made of them and have 32 bits. Raises `TraceError` where there are too many.
    """
    names: dict[int, int] = {}
    made = [
        replace(each, block_ids=tuple(names.setdefault(one, len(names)) for one in each.block_ids))
        if each.block_ids
        else each
        for each in arrivals
    ]
    if len(names) > (most := 2**31 // block):
        raise TraceError(f"it has {len(names):,} different blocks, and {most:,} can be told apart: cut it")
    return made
