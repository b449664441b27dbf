"""Traces for the cache replay: prompts made of 512-token blocks, and what an endless cache would save.

Reads the Mooncake format through the load generator's parser, or makes a small trace of the same shape. Pure.
"""

import random
from collections.abc import Iterable, Sequence

from mamba_cli.bench.traces import Arrival
from mamba_cli.fleet.prompt_blocks import BLOCK


def endless_cache_bound(arrivals: Iterable[Arrival]) -> float:
    """Share of prompt tokens that a cache of every block of every prompt, never evicting, would save.

    That is the bound of attention KV; the last token is always computed, so at most `len - 1` count.
    """
    seen: set[int] = set()
    saved = total = 0
    for arrival in arrivals:
        seen_blocks = 0
        for block in arrival.block_ids:
            if block not in seen:
                break
            seen_blocks += 1
        saved += min(seen_blocks, (arrival.input_tokens - 1) // BLOCK) * BLOCK
        total += arrival.input_tokens
        seen.update(arrival.block_ids)
    return saved / total if total else 0.0


def generated(
    requests: int, seed: int = 0, *, documents: int = 12, depth: Sequence[int] = (4, 40)
) -> list[Arrival]:
    """Return a small trace of the same format: questions on shared documents, and conversations that go on.

    `depth`: least and most blocks of a document.
    """
    rng = random.Random(seed)
    fresh = iter(range(1 << 21))
    library = [[next(fresh) for _ in range(rng.randint(*depth))] for _ in range(documents)]
    chats: list[list[int]] = []
    out: list[Arrival] = []
    for number in range(requests):
        if chats and rng.random() < 0.4:
            chat = rng.choice(chats)
        else:
            stem = rng.choice(library)
            cut = len(stem) if rng.random() < 0.7 else rng.randint(1, len(stem))
            chat = list(stem[:cut])
            chats.append(chat)
        chat.extend(next(fresh) for _ in range(rng.randint(1, 4)))
        # A last block that is not whole has an id of its own: the next turn goes on inside it.
        length = BLOCK * len(chat) + rng.randrange(1, BLOCK)
        out.append(Arrival(number * 0.25, length, rng.randint(1, 200), (*chat, next(fresh))))
    return out
