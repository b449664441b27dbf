"""Explanation of what a prompt resumes: the cache's match in terms of the nearest cached prompt. Pure.

The admission asks for one where the client wants it, and the admin call `explain` for a prompt that is not
computed. The API process turns it into words and text.
"""

from mamba_server.cache import Match, NearestPrefix, StateCache, Tokens
from mamba_server.wire import ExplainedReason, PrefixExplanation

_REASONS: dict[str, ExplainedReason] = {
    "no_state": "no_checkpoint",
    "too_deep": "checkpoint_too_deep",
    "in_flight": "being_computed",
    "no_memory": "no_memory",
    "prompt_logprobs": "prompt_read_whole",
    "corrupt": "transfer_failed",
}
"""Reasons by the causes of a miss that say the same; the others are told apart by the nearest prompt."""
_LOSSES: dict[str, ExplainedReason] = {"quarantined": "quarantined", "flushed": "flushed"}


def explain(
    nearest: NearestPrefix,
    match: Match,
    cause: str,
    tokens: int,
    page_size: int,
    *,
    caches: bool = True,
    seen: int = 0,
    transfer_failed: bool = False,
) -> PrefixExplanation:
    """Return the explanation of `match`, the match of a prompt of `tokens` tokens.

    Args:
        nearest: the nearest cached prompt before anything was evicted for this one.
        match: what the prompt resumes.
        cause: why it resumes no more.
        tokens: length of the prompt.
        page_size: tokens per page.
        caches: whether prefixes are cached at all.
        seen: tokens that an earlier prompt began with, cached or not; 0 = unknown.
        transfer_failed: whether a state that was to come from elsewhere did not.
    """
    reason = _reason(nearest, match, cause, (tokens - 1) // page_size * page_size, seen)
    if not caches:
        reason = "caching_off"
    elif tokens <= page_size:
        reason = "too_short"
    elif transfer_failed and reason != "resumed_all":
        reason = "transfer_failed"
    cached = tuple(nearest.continuation.tolist())
    return PrefixExplanation(match.resumable, nearest.depth, reason, cached, nearest.hidden)


def _reason(nearest: NearestPrefix, match: Match, cause: str, last_page: int, seen: int) -> ExplainedReason:
    """Return why no more was resumed.

    Args:
        nearest: the cached prompt nearest to this one.
        match: what the cache has of the prompt.
        cause: what ended the match; "" = nothing did.
        last_page: end of the last page that a prompt can resume, in tokens.
        seen: tokens that an earlier prompt began with, cached or not.
    """
    if cause in _REASONS:
        return _REASONS[cause]
    if cause == "evicted":
        return _LOSSES.get(nearest.loss, "checkpoint_evicted")
    if not cause:
        return "resumed_all" if match.resumable >= last_page else "pinning"
    # The tokens are new to the cache. That another salt has them is nothing that this one may learn.
    if seen > match.kv_depth:
        return "pages_evicted"
    if len(nearest.continuation) or nearest.hidden:
        return "parted"
    return "new_text" if nearest.depth else "nothing_cached"


def dry_run(cache: StateCache, token_ids: Tokens, salt: str, client: str, step: int) -> PrefixExplanation:
    """Return what a prompt of `client` would resume if `step` launched it; nothing changes."""
    match = cache.match(token_ids, salt, step)
    return explain(
        cache.nearest(token_ids, salt, client),
        match,
        match.cause,
        len(token_ids),
        cache.capacity.page_size,
        caches=cache.settings.prefix_caching,
    )
