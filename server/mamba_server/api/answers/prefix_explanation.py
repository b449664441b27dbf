"""Explanation of what a prompt resumed and why no more, in words and with the text on both sides. Pure.

The engine gives numbers, a reason and token ids; the builders of answers and the admin API show the result.
The fields are those of `mamba_api.openai_responses.PrefixExplanation`.
"""

from collections.abc import Sequence
from typing import Any

from mamba_edge.exchange.explain_header import Elsewhere
from mamba_server.wire import ExplainedReason, PrefixExplanation
from mamba_text.tokenizer import Tokenizer

SHOWN_CHARS = 40
"""Most characters of each text that an explanation shows."""
SHOWN_TOKENS = 64
"""Most tokens that such a text is decoded from."""
_COMPUTED = ("parted", "new_text", "nothing_cached", "no_checkpoint", "checkpoint_evicted", "pages_evicted")
"""Reasons that another engine's cache would have made up for."""
WORDS: dict[ExplainedReason, str] = {
    "resumed_all": "Every whole page before the last token of the prompt was resumed.",
    "too_short": "The prompt has no whole page before its last token, and only whole pages are resumed.",
    "new_text": "The nearest cached prompt ends at token {depth}, and the rest of this one is new.",
    "parted": "The prompt parts from the nearest cached one at token {depth}.",
    "nothing_cached": "Nothing is cached that begins like this prompt, under its model or adapter and its "
    "cache_salt.",
    "caching_off": "This engine caches no prefixes: it was started with --no-prefix-caching.",
    "being_computed": "Another request was still computing the same text when this one started.",
    "no_checkpoint": "The first {depth} tokens are cached, but no state was kept between token {resumed} and "
    "token {depth}, so they were computed again.",
    "checkpoint_too_deep": "The first {depth} tokens are cached, but the next state lies behind them, where "
    "the cached prompt goes on differently.",
    "checkpoint_evicted": "The first {depth} tokens are cached, but the state between token {resumed} and "
    "token {depth} was evicted to make room.",
    "flushed": "The first {depth} tokens were cached, and the cache has been flushed since.",
    "quarantined": "An audit found the state behind token {resumed} wrong and withdrew it.",
    "pages_evicted": "An earlier prompt began like this one, and what was cached of it was evicted.",
    "pinning": "More was cached, and was computed again so that a pinned prefix gets a state of its own.",
    "no_memory": "Resuming would have taken the memory that the prompt itself needed.",
    "prompt_read_whole": "The request asks for log-probabilities or the mean of its prompt, so all of it was "
    "computed.",
    "transfer_failed": "A state that was to come from another engine or from the tiers did not arrive, or "
    "was damaged.",
}
"""Description of each reason, in one sentence."""


def explanation_body(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    explanation: PrefixExplanation,
    elsewhere: Elsewhere | None = None,
) -> dict[str, Any]:
    """Return the JSON of one explanation.

    `elsewhere` is the engine that, as a gateway knows, could have resumed more; None if there is none.
    """
    depth, resumed = explanation.depth, explanation.resumed
    reason: str = explanation.reason
    words = WORDS[explanation.reason].format(depth=depth, resumed=resumed)
    body: dict[str, Any] = {
        "prompt_tokens": len(token_ids),
        "resumed_tokens": resumed,
        "common_tokens": depth,
        "reason": reason,
        "explanation": words,
        "shared_text": None,
        "prompt_text": None,
        "cached_text": None,
        "other_engine": None,
    }
    if elsewhere is not None and elsewhere.tokens > resumed and reason in _COMPUTED:
        body["reason"] = "other_engine"
        body["explanation"] = (
            f"The request went to this engine, and {elsewhere.name} could have resumed "
            f"{elsewhere.tokens} tokens: it would have answered later. {words}"
        )
        body["other_engine"] = {"name": elsewhere.name, "tokens": elsewhere.tokens}
    if explanation.hidden:
        body["explanation"] += " What the cached prompt goes on with belongs to another API key: not shown."
    apart = explanation.cached or explanation.hidden or reason == "new_text"
    if not apart or reason == "too_short":
        return body
    shared = _text(tokenizer, token_ids[max(0, depth - SHOWN_TOKENS) : depth])[-SHOWN_CHARS:]
    own = _text(tokenizer, token_ids[depth : depth + SHOWN_TOKENS])[:SHOWN_CHARS]
    body |= {"shared_text": shared, "prompt_text": own}
    if explanation.cached:
        body["cached_text"] = _text(tokenizer, explanation.cached)[:SHOWN_CHARS]
    return body


def _text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    return tokenizer.decode(list(token_ids), special=True)
