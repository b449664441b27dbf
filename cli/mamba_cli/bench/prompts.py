"""Prompts of given lengths, whose token ids depend only on names and the seed. Pure.

The same name of a stream or block gives the same tokens in every run and process, so that prompts share
exactly the intended prefixes.
"""

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

LOWEST_ID = 8
"""Lowest token id in use: lower ids are often special tokens."""
PIECE_TOKENS = 16
"""Largest number of tokens that are compared at once; the shared length is rounded up to whole pieces."""
NOTICEABLE = 0.01
"""Share of the prompt tokens above which tokens cached before the run change its latencies."""


@dataclass(frozen=True, slots=True)
class LoadPrompt:
    """One request of a load: its prompt, and the number of tokens that it asks for.

    `at` is the time of sending in seconds, in a run with scheduled times.
    """

    token_ids: tuple[int, ...]
    output_tokens: int
    at: float = 0.0
    messages: tuple[dict[str, Any], ...] | None = None
    """Messages of a chat, which are sent in place of token ids."""


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Even distribution of lengths from `mean * (1 - spread)` to `mean * (1 + spread)`, at least 1."""

    mean: int
    spread: float = 0.0

    def draw(self, rng: Random) -> int:
        """Draw one length."""
        reach = int(self.mean * self.spread)
        return max(1, rng.randint(self.mean - reach, self.mean + reach))


def tokens(name: str, count: int, vocab_size: int) -> tuple[int, ...]:
    """Return the first `count` tokens of the endless stream `name`, in [LOWEST_ID, vocab_size).

    A longer result begins with the shorter one, because SHAKE-256 is an extendable-output function.
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
    """Return a prompt of `length` tokens that begins with a block of `block_size` tokens for each id.

    Equal ids give equal blocks in every prompt; the last block is cut to the length. Where the blocks are
    too short, tokens that depend on all `ids` and the length follow.
    """
    prompt: list[int] = []
    for number in ids:
        if len(prompt) >= length:
            break
        prompt += _block(f"{seed}/block/{number}", block_size, vocab_size)
    if len(prompt) < length:
        prompt += tokens(f"{seed}/tail/{ids}/{length}", length - len(prompt), vocab_size)
    return tuple(prompt[:length])


# A trace repeats its popular blocks thousands of times.
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
    """Yield `count` random prompts, of which each has its beginning in common with the others of its group.

    Args:
        count: number of prompts.
        inputs: lengths of the prompts, in tokens.
        outputs: lengths of the answers, in tokens.
        vocab_size: token ids are below this number.
        shared: share of a prompt, 0 to 1, that its group has in common.
        groups: number of groups.
        seed: equal seeds give equal prompts.

    Raises ValueError for a share outside of 0 to 1 or no group.
    """
    if not 0 <= shared <= 1 or groups < 1:
        raise ValueError("the shared part must be from 0 to 1, and there must be at least one group")
    rng = Random(seed)
    for number in range(count):
        length, output = inputs.draw(rng), outputs.draw(rng)
        common = int(length * shared)
        prefix = tokens(f"{seed}/group/{rng.randrange(groups)}", common, vocab_size)
        own = tokens(f"{seed}/own/{number}", length - common, vocab_size)
        yield LoadPrompt(prefix + own, output)


def at_times(prompts: Iterable[LoadPrompt], times: Iterable[float]) -> Iterator[LoadPrompt]:
    """Yield the prompts with their times, in seconds. Raises ValueError where their numbers differ."""
    return (replace(prompt, at=time) for prompt, time in zip(prompts, times, strict=True))


def shared_tokens(prompts: Iterable[LoadPrompt]) -> int:
    """Return the number of prompt tokens that repeat the beginning of an earlier one of `prompts`."""
    seen: set[int] = set()
    shared = piece = 0
    for prompt in prompts:
        ids, chain, common = prompt.token_ids, 0, bool(seen)
        piece = piece or max(1, min(PIECE_TOKENS, len(ids) // PIECE_TOKENS))
        for begin in range(0, len(ids), piece):
            chain = hash((chain, ids[begin : begin + piece]))
            if common:
                # The first piece that differs may still share its beginning.
                shared += min(piece, len(ids) - begin)
                common = chain in seen
            seen.add(chain)
    return shared


def cached_before(cached: int, prompt_tokens: int, prompts: Iterable[LoadPrompt]) -> int:
    """Return how many of the `cached` tokens were in the server's cache before the run.

    `prompt_tokens` is the number of tokens of all `prompts`. A negligible result is 0.
    """
    if cached <= NOTICEABLE * prompt_tokens:
        return 0
    excess = cached - shared_tokens(prompts)
    return excess if excess > NOTICEABLE * prompt_tokens else 0
