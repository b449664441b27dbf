"""How much of its prompts a run itself can have put into a cache: more was there before. Pure."""

from collections.abc import Iterable

from mamba_cli.bench.prompts import LoadPrompt

PIECE = 16
"""Most tokens that are compared at once, fewer where prompts are short; what two prompts share is rounded up
to whole pieces."""
NOTICEABLE = 0.01
"""Share of the prompt tokens from which on a measurement is another one."""


def shared_tokens(prompts: Iterable[LoadPrompt]) -> int:
    """Return the prompt tokens with which an earlier one of `prompts` begins, too."""
    seen: set[int] = set()
    shared = piece = 0
    for prompt in prompts:
        ids, chain, common = prompt.token_ids, 0, bool(seen)
        piece = piece or max(1, min(PIECE, len(ids) // PIECE))
        for begin in range(0, len(ids), piece):
            chain = hash((chain, ids[begin : begin + piece]))
            if common:
                # The first piece that differs may still begin alike.
                shared += min(piece, len(ids) - begin)
                common = chain in seen
            seen.add(chain)
    return shared


def cached_before(cached: int, prompt_tokens: int, prompts: Iterable[LoadPrompt]) -> int:
    """Return the tokens that were in the server's cache before the run; 0 = as good as none."""
    if cached <= NOTICEABLE * prompt_tokens:
        return 0
    more = cached - shared_tokens(prompts)
    return more if more > NOTICEABLE * prompt_tokens else 0
