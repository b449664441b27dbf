"""Prompts of given lengths out of token ids that depend on nothing but names and the seed. Pure.

The same stream or block name gives the same tokens in every run and process, so that prefixes are shared
exactly where they should be, and nowhere by accident.
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from random import Random

LOWEST_ID = 8
"""Ids below are left out: special tokens usually live there."""


@dataclass(frozen=True, slots=True)
class LoadPrompt:
    """What one request asks for. `at` is its time in an open-loop run."""

    token_ids: tuple[int, ...]
    output_tokens: int
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Uniform integers within `spread` (0 to 1, relative) of `mean`, at least 1."""

    mean: int
    spread: float = 0.0

    def draw(self, rng: Random) -> int:
        """One length."""
        reach = int(self.mean * self.spread)
        return max(1, rng.randint(self.mean - reach, self.mean + reach))


def tokens(name: str, count: int, vocab_size: int) -> tuple[int, ...]:
    """The first `count` tokens of the endless stream called `name`, in [LOWEST_ID, vocab_size).

    A longer draw begins with the shorter one (SHAKE-256 is an extendable-output function).
    Raises ValueError if the vocabulary has no id to draw.
    """
    if vocab_size <= LOWEST_ID:
        raise ValueError(f"a vocabulary of {vocab_size} has no id from {LOWEST_ID} on")
    raw = hashlib.shake_256(name.encode()).digest(4 * count)
    span = vocab_size - LOWEST_ID
    return tuple(LOWEST_ID + number % span for number in struct.unpack(f"<{count}I", raw))


def blocks(
    ids: tuple[int, ...], length: int, vocab_size: int, *, block_size: int = 512, seed: int = 0
) -> tuple[int, ...]:
    """`length` tokens made of named blocks; what the ids do not cover is the prompt's own.

    Equal ids give equal tokens wherever they stand, the last block is cut to the length.
    """
    made: list[int] = []
    for number in ids:
        if len(made) >= length:
            break
        made += _block(f"{seed}/block/{number}", block_size, vocab_size)
    if len(made) < length:
        made += tokens(f"{seed}/tail/{ids}/{length}", length - len(made), vocab_size)
    return tuple(made[:length])


# A trace names its popular blocks thousands of times.
_block = lru_cache(maxsize=4096)(tokens)


def random_prompts(
    count: int,
    inputs: LengthRange,
    outputs: LengthRange,
    vocab_size: int,
    *,
    shared: float = 0.0,
    groups: int = 1,
    seed: int = 0,
) -> Iterator[LoadPrompt]:
    """`count` prompts; the first `shared` (0 to 1) of each is common to its group, the rest its own.

    Raises ValueError for a share outside of 0 to 1 or no group.
    """
    if not 0 <= shared <= 1 or groups < 1:
        raise ValueError("the shared part is from 0 to 1, and there is at least one group")
    rng = Random(seed)
    for number in range(count):
        length, output = inputs.draw(rng), outputs.draw(rng)
        common = int(length * shared)
        prefix = tokens(f"{seed}/group/{rng.randrange(groups)}", common, vocab_size)
        own = tokens(f"{seed}/own/{number}", length - common, vocab_size)
        yield LoadPrompt(prefix + own, output)
