"""`cached_before`: the resumed tokens that a run cannot have put into the cache itself. Pure."""

from collections.abc import Iterable

from mamba_cli.bench.prompts import LoadPrompt

PIECE_TOKENS = 16
"""Largest number of tokens that are compared at once; the shared length is rounded up to whole pieces."""
NOTICEABLE = 0.01
"""Share of the prompt tokens above which tokens cached before the run change its latencies."""


def shared_tokens(prompts: Iterable[LoadPrompt]) -> int:
    """Return the number of prompt tokens that an earlier one of `prompts` also begins with."""
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
    """Return the tokens that were in the server's cache before the run; 0 = a negligible number."""
    if cached <= NOTICEABLE * prompt_tokens:
        return 0
    excess = cached - shared_tokens(prompts)
    return excess if excess > NOTICEABLE * prompt_tokens else 0
