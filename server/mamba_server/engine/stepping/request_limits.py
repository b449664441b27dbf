"""Limits of an engine, applied to one request: whether it can run here, and where its prefixes end."""

from mamba_server.cache import Capacity
from mamba_server.wire import AddRequest, RequestRejected


def hand_over_depth(request: AddRequest, page_size: int) -> int:
    """Return how many tokens of a prompt to hand over: whole pages, without the last token."""
    return (len(request.token_ids) - 1) // page_size * page_size


def pinned_depths(request: AddRequest, page_size: int, least: int) -> tuple[tuple[int, float], ...]:
    """Return the depths at which a request pins its prompt, with the seconds of each pin, shallowest first.

    Depths are page boundaries before the prompt's end. `least`: tokens of the shallowest prefix that is kept.
    """
    longest, seconds = hand_over_depth(request, page_size), dict[int, float]()
    for tokens, period in request.pins:
        depth = min(tokens // page_size * page_size, longest)
        seconds[depth] = max(seconds.get(depth, 0.0), period)
    return tuple(pair for pair in sorted(seconds.items()) if pair[0] >= max(1, least))


def rejection(
    request: AddRequest,
    capacity: Capacity,
    *,
    runs_already: bool,
    most_tokens: int,
    waiting: int,
    most_waiting: int,
) -> RequestRejected | None:
    """Return why a request cannot be queued, or None.

    Args:
        request: the request.
        capacity: capacity of the engine's cache.
        runs_already: whether a request of this id runs.
        most_tokens: longest prompt and answer together.
        waiting: sequences that wait.
        most_waiting: sequences that may wait.
    """
    prompt_len, answer_len = len(request.token_ids), request.params.max_tokens
    # The answer to a handed-over prompt is written elsewhere.
    total = prompt_len if request.hand_over else prompt_len + answer_len
    computed = hand_over_depth(request, capacity.page_size) if request.hand_over else total
    if runs_already:
        return RequestRejected(
            request.request_id, 409, "invalid_request_error", "duplicate_request_id",
            f"request {request.request_id} is running already: choose another id",
        )  # fmt: skip
    if not prompt_len:
        return RequestRejected(
            request.request_id, 400, "invalid_request_error", "empty_prompt",
            "the prompt has no tokens: send at least one",
        )  # fmt: skip
    if total > most_tokens:
        return RequestRejected(
            request.request_id, 400, "invalid_request_error", "context_length_exceeded",
            f"prompt ({prompt_len}) and max_tokens ({answer_len}) exceed the model's "
            f"{most_tokens} tokens: shorten the prompt or lower max_tokens",
        )  # fmt: skip
    if capacity.never_fits(computed):
        return RequestRejected(
            request.request_id, 400, "invalid_request_error", "context_length_exceeded",
            f"a sequence of {total} tokens does not fit this engine's arena of "
            f"{capacity.slabs} slabs: lower max_tokens or give the engine more memory",
        )  # fmt: skip
    if waiting + request.n > most_waiting:
        return RequestRejected(
            request.request_id, 429, "rate_limit_error", "overloaded",
            f"{waiting} sequences are waiting already: retry later", 1.0,
        )  # fmt: skip
    return None
