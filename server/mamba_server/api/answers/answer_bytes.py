"""Bytes of an answer, whole or as the events of a stream, from the updates of its request.

The endpoints choose the builder of the dialect, which knows its JSON.
"""

import time
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Protocol, TypeVar

from msgspec import UnsetType

from mamba_api.openai import GenerationRequest
from mamba_edge.errors import ApiError
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ActiveRequest, ChoiceUpdate
from mamba_server.api.answers.requested_explanation import RequestedExplanation
from mamba_server.api.answers.responses import UsageBody, VendorBody
from mamba_server.api.answers.score_json import let_go
from mamba_server.api.requests.sampling import prompt_alternatives
from mamba_server.wire import TokenLogprobs
from mamba_telemetry.logs import get_logger
from mamba_telemetry.request_trace import RequestTrace, error_code
from mamba_text.encoder_pool import EncoderPool

log = get_logger(__name__)
Encoded = TypeVar("Encoded")

ENTRY_CHARS = 32
"""Approximate size of one log-probability in an answer's JSON; encoding it takes six times the memory."""
QUIET_SECONDS = 15.0
"""Time without an event after which a running stream sends a comment: load balancers close silent streams."""


class ResponseBuilder(Protocol):
    """Encodes one answer as chunks of a stream, or whole; each API has a builder of its own."""

    quiet: bytes
    done: bytes
    vendor: VendorBody | UnsetType

    def failure(self, error: ApiError) -> bytes: ...
    def chunk(
        self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool
    ) -> bytes | list[bytes] | None: ...
    def usage_chunk(self, usage: UsageBody) -> bytes: ...
    def collect(self, update: ChoiceUpdate) -> None: ...
    def weight(self, update: ChoiceUpdate) -> int: ...
    def seal(self, index: int) -> None: ...
    def full(self, usage: UsageBody) -> list[bytes]: ...


def _usage(active: ActiveRequest, *, ended: bool = False) -> UsageBody:
    counts = active.counts
    cost = counts.cost if ended else None
    return responses.usage_body(counts.prompt, counts.completion, counts.cached_total, cost, counts.prices)


def free_scores(scores: list[list[TokenLogprobs | None]], encoders: EncoderPool) -> None:
    """Free the remaining log-probabilities of prompts of an unfinished answer, in a thread of the pool."""
    if remaining := [entries for entries in scores if entries]:

        def free() -> None:
            for entries in remaining:
                let_go(entries)

        encoders.hand_over(free)


async def whole_answer(
    builder: ResponseBuilder,
    active: ActiveRequest,
    encoders: EncoderPool,
    explanation: RequestedExplanation | None,
) -> list[bytes]:
    """Collect the complete answer, in pieces. Long choices are encoded one by one in the encoder pool."""
    weight = 0
    async for update in active.updates():
        builder.collect(update)
        weight = max(weight, builder.weight(update))
        if update.finish_reason is not None:
            await _encode(encoders, builder.weight(update), partial(builder.seal, update.choice))
    if explanation is not None:
        builder.vendor = explanation.vendor_body(active.explanations)
    return await _encode(encoders, weight, lambda: builder.full(_usage(active, ended=True)))


async def _encode(encoders: EncoderPool, entries: int, work: Callable[[], Encoded]) -> Encoded:
    """Run `work`, which encodes `entries` log-probabilities; in the encoder pool if they are many."""
    return await encoders.run(entries * ENTRY_CHARS, lambda _: work())


async def answer_events(
    request: GenerationRequest,
    builder: ResponseBuilder,
    active: ActiveRequest,
    trace: RequestTrace,
    encoders: EncoderPool,
    explanation: RequestedExplanation | None,
    *,
    with_comment: bool,
) -> AsyncGenerator[bytes]:
    """Yield the events of a streamed answer, long ones in pieces.

    An error after the first event becomes an event. While tokens arrive that cannot be sent yet, such as the
    tokens of a long tool call, comments keep the stream alive. `explanation` goes into the last chunk; None =
    the client asked for none. `with_comment`: a last comment reports the usage to a gateway that counts
    tokens.
    """
    include, continuous = _usage_wanted(request)
    scored = prompt_alternatives(request) is not None
    begun, sent_at = False, time.monotonic()
    try:
        async for update in active.updates():
            usage = _usage(active) if continuous else None
            if not include:
                _explain_in_chunk(builder, active, explanation, update)
            encode = partial(builder.chunk, update, usage, with_usage=include or continuous)
            chunk = await _encode(encoders, builder.weight(update), encode) if scored else encode()
            now = time.monotonic()
            if chunk is None and now - sent_at < QUIET_SECONDS:
                continue
            begun, sent_at = True, now
            if not isinstance(chunk, list):
                yield builder.quiet if chunk is None else chunk
                continue
            while chunk:
                yield chunk.pop(0)
        if last := _last_usage(builder, active, explanation, include=include):
            yield last
    except ApiError as error:
        if not begun:
            raise
        trace.root.fail(error_code(error))
        log.warning("stream_failed", code=error.code, reason=error.message)
        yield builder.failure(error)
    if ending := _ending(builder, active, with_comment=with_comment):
        yield ending


def _usage_wanted(request: GenerationRequest) -> tuple[bool, bool]:
    """Return whether a stream reports its usage at the end, and whether in each chunk."""
    options = request.stream_options
    if options is None:
        return False, False
    return bool(options.include_usage), bool(options.continuous_usage_stats)


def _explain_in_chunk(
    builder: ResponseBuilder,
    active: ActiveRequest,
    explanation: RequestedExplanation | None,
    update: ChoiceUpdate,
) -> None:
    """Let the chunk of `update` carry the explanation, if the answer ends with this update."""
    if explanation is not None and explanation.is_due(update):
        builder.vendor = explanation.vendor_body(active.explanations)


def _last_usage(
    builder: ResponseBuilder,
    active: ActiveRequest,
    explanation: RequestedExplanation | None,
    *,
    include: bool,
) -> bytes:
    """Return the usage chunk; b"" if the client asks neither for the usage nor for the cost."""
    if include and explanation is not None:
        builder.vendor = explanation.vendor_body(active.explanations)
    return builder.usage_chunk(_usage(active, ended=True)) if include or active.counts.costs else b""


def _ending(builder: ResponseBuilder, active: ActiveRequest, *, with_comment: bool) -> bytes:
    """Return the bytes behind the last event; empty if the dialect has none."""
    comment = responses.usage_comment(_usage(active)) if with_comment else b""
    return comment + builder.done
