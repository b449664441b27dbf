"""The two endpoints that generate: from a validated request to token ids, the engine and the answer.

FastAPI routes call the methods of `GenerationEndpoints`; what they raise becomes the OpenAI envelope.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_edge.errors import ApiError, InvalidRequest, NotReady
from mamba_edge.exchange.asgi_responses import USAGE_HEADER, send_events, send_json_pieces, while_connected
from mamba_edge.exchange.request_body import RawHeaders
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ActiveRequest, ChoiceUpdate
from mamba_server.api.answers.answer_reader import AnswerFormat
from mamba_server.api.answers.chat_response import ChatResponseBuilder
from mamba_server.api.answers.completion_response import CompletionResponseBuilder
from mamba_server.api.answers.responses import UsageBody
from mamba_server.api.answers.score_json import let_go
from mamba_server.api.forms.followed_schema import LEFT_OUT_HEADER
from mamba_server.api.forms.output_grammar import GrammarCheck, OutputForm, output_grammar
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.requests.sampling import output_tokens, prompt_alternatives, sampling_params
from mamba_server.api.serving import Places, Serving
from mamba_server.wire import AddRequest, TokenIds, TokenLogprobs
from mamba_telemetry import conventions as names
from mamba_telemetry.logs import get_logger
from mamba_telemetry.request_trace import RequestTrace, error_code
from mamba_text.encoder_pool import EncoderPool
from mamba_text.prompt import Prompt, TextProcessor
from mamba_text.sequence_text import TextVisibility

log = get_logger(__name__)
Encoded = TypeVar("Encoded")

ENTRY_CHARS = 32
"""About what one log-probability takes in the JSON of an answer; six times as much while it is made."""
QUIET_SECONDS = 15.0
"""Without an event, after which a stream that goes on gets a comment: balancers take silence for death."""


class ResponseBuilder(Protocol):
    """What both kinds of answer offer."""

    def chunk(
        self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool
    ) -> bytes | list[bytes] | None: ...
    def usage_chunk(self, usage: UsageBody) -> bytes: ...
    def collect(self, update: ChoiceUpdate) -> None: ...
    def weight(self, update: ChoiceUpdate) -> int: ...
    def seal(self, index: int) -> None: ...
    def full(self, usage: UsageBody) -> list[bytes]: ...


class GeneratedResponse(Response):
    """A response that speaks ASGI itself: bytes go from the encoder to `send`. `work` is cancelled when the
    client leaves."""

    def __init__(self, work: Callable[[Send], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._work(send))


class GenerationEndpoints:
    """The handlers of one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt: a string, strings, token ids, or lists of token ids."""
        return GeneratedResponse(lambda send: self._complete(body, context_of(request.scope), send))

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return GeneratedResponse(lambda send: self._answer(body, context_of(request.scope), send))

    async def _complete(self, request: CompletionRequest, context: RequestContext, send: Send) -> None:
        text, limits = self._model(request)
        self._describe("text_completion", request, context)
        with self._serving.admitted(len(request.prompts), request.n or 1) as places:
            made = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            prompts = await made.of_completion(request)
            form = await output_grammar(request, text, self._check_grammar(context, places))
        priorities = self._serving.settings.anonymous_priority
        response_id = f"cmpl-{uuid.uuid4().hex}"
        adds = [
            _add_request(
                request,
                f"{response_id}-{place}",
                prompt,
                text,
                limits,
                context,
                form.grammar,
                priorities=priorities,
            )
            for place, prompt in enumerate(prompts)
        ]
        self._foresee(request, prompts, context)
        builder = CompletionResponseBuilder(
            request,
            text.tokenizer,
            [(prompt.token_ids, prompt.text) for prompt in prompts],
            response_id=response_id,
            created=int(time.time()),
            model=self._serving.model_name,
        )
        await self._run(request, builder, adds, text, context, send, headers=_headers(form))

    async def _answer(self, request: ChatCompletionRequest, context: RequestContext, send: Send) -> None:
        text, limits = self._model(request)
        self._describe("chat", request, context)
        with self._serving.admitted(1, request.n or 1) as places:
            prompts = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            prompt = await prompts.of_chat(request, context.body_bytes)
            form = await output_grammar(request, text, self._check_grammar(context, places), prompt.opening)
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        priorities = self._serving.settings.anonymous_priority
        add = _add_request(
            request, response_id, prompt, text, limits, context, form.grammar, priorities=priorities
        )
        self._foresee(request, [prompt], context)
        read = AnswerFormat.of(request, text.template)
        builder = ChatResponseBuilder(
            request,
            text.tokenizer,
            prompt.token_ids,
            response_id=response_id,
            created=int(time.time()),
            model=self._serving.model_name,
            readers=read.readers(request, text, prompt),
        )
        kept = text.tokenizer.ids_of(read.markers)
        await self._run(request, builder, [add], text, context, send, kept, headers=_headers(form))

    def _foresee(
        self, request: GenerationRequest, prompts: Sequence[Prompt], context: RequestContext
    ) -> None:
        """Count what the log-probabilities of prompts will take against what bodies may. Raises
        InvalidRequest, TooManyBodies."""
        alternatives = prompt_alternatives(request)
        if alternatives is None:
            return
        copies = (request.n or 1) if isinstance(request, CompletionRequest) else 1
        tokens = sum(len(prompt.token_ids) for prompt in prompts)
        size = tokens * (1 + alternatives) * ENTRY_CHARS * copies
        most = self._serving.settings.max_held_body_bytes
        if size > most:
            raise InvalidRequest(
                f"logprobs: those of {tokens} tokens of prompts with {alternatives} alternatives, {copies} "
                f"times, take about {size} bytes, and {most} are the most; ask for fewer of them, or in "
                "several requests",
                param="logprobs",
            )
        context.body_share.take(size)

    def _describe(self, operation: str, request: GenerationRequest, context: RequestContext) -> None:
        """What the request's own span says of it: never what was asked."""
        trace = context.trace
        if trace.recording:
            trace.root.set(names.OPERATION, operation)
            trace.root.set(names.PROVIDER, "mambaserve")
            trace.root.set(names.REQUEST_MODEL, self._serving.model_name)
            trace.root.set(names.REQUEST_STREAM, bool(request.stream))

    def _check_grammar(self, context: RequestContext, places: Places) -> GrammarCheck:
        client = context.client
        return lambda grammar: self._serving.check_grammar(grammar, client, places)

    def _model(self, request: GenerationRequest) -> tuple[TextProcessor, ModelLimits]:
        self._serving.check_model(request.model)
        limits = self._serving.limits()
        if self._serving.text is None:
            raise NotReady("the tokenizer is not loaded yet")
        return self._serving.text, limits

    async def _run(
        self,
        request: GenerationRequest,
        builder: ResponseBuilder,
        adds: list[AddRequest],
        text: TextProcessor,
        context: RequestContext,
        send: Send,
        visible_special: frozenset[int] = frozenset(),
        *,
        headers: RawHeaders = (),
    ) -> None:
        """`visible_special`: special tokens by which the response is parsed; `headers`: more of its own."""
        fields = context.log_fields
        fields["answer"] = adds[0].request_id
        serving = self._serving
        shown = TextVisibility(
            request.stops,
            special_tokens=request.skip_special_tokens is False,
            stop=bool(request.include_stop_str_in_output),
            visible_special=visible_special,
        )
        trace = context.trace
        active = ActiveRequest(serving.engine, text.tokenizer, adds, shown, serving.metrics, trace)
        try:
            async with active:
                if request.stream:
                    told = context.header_values.get(USAGE_HEADER) == b"1"
                    events = _events(request, builder, active, trace, serving.encoders, with_comment=told)
                    await send_events(send, events, context.direct, headers)
                else:
                    await send_json_pieces(send, await _whole(builder, active, serving.encoders), headers)
        finally:
            _free(active.scores, serving.encoders)
            trace.root.set(names.RESPONSE_ID, adds[0].request_id)
            trace.root.set(names.INPUT_TOKENS, active.counts.prompt)
            trace.root.set(names.OUTPUT_TOKENS, active.counts.completion)
            trace.root.set(names.CACHED_TOKENS, active.counts.cached_total)
            fields.update(
                prompt_tokens=active.counts.prompt,
                generated_tokens=active.counts.completion,
                cached_tokens=active.counts.cached_total,
            )


def _add_request(
    request: GenerationRequest,
    request_id: str,
    prompt: Prompt,
    text: TextProcessor,
    limits: ModelLimits,
    context: RequestContext,
    grammar: str,
    *,
    priorities: bool,
) -> AddRequest:
    """`priorities`: what clients without a name say of their priority acts, too."""
    client = context.client
    most = output_tokens(request, len(prompt.token_ids), limits)
    return AddRequest(
        request_id=request_id,
        token_ids=TokenIds(prompt.token_ids),
        params=sampling_params(request, text.defaults, limits, most, grammar),
        n=request.n or 1,
        priority=(request.priority or 0) if client or priorities else 0,
        client=client,
        cache_salt=request.cache_salt or "",
        turn_boundary=prompt.turn_boundary,
        arrival=context.arrival,
    )


def _headers(form: OutputForm) -> RawHeaders:
    """What the answer's headers say of its form."""
    return [(LEFT_OUT_HEADER.lower().encode(), ", ".join(form.left_out).encode())] if form.left_out else ()


def _usage(active: ActiveRequest) -> UsageBody:
    counts = active.counts
    return responses.usage_body(counts.prompt, counts.completion, counts.cached_total)


def _free(scores: list[list[TokenLogprobs | None]], encoders: EncoderPool) -> None:
    """Free what an answer that was not finished has of its prompts' log-probabilities, beside the loop."""
    if left := [entries for entries in scores if entries]:

        def free() -> None:
            for entries in left:
                let_go(entries)

        encoders.hand_over(free)


async def _whole(builder: ResponseBuilder, active: ActiveRequest, encoders: EncoderPool) -> list[bytes]:
    """The complete answer, in pieces. What is long is encoded beside the loop, choice by choice."""
    weight = 0
    async for update in active.updates():
        builder.collect(update)
        weight = max(weight, builder.weight(update))
        if update.finish_reason is not None:
            await _beside(encoders, builder.weight(update), partial(builder.seal, update.choice))
    return await _beside(encoders, weight, lambda: builder.full(_usage(active)))


async def _beside(encoders: EncoderPool, entries: int, work: Callable[[], Encoded]) -> Encoded:
    """The result of encoding so many log-probabilities, beside the loop if they are many."""
    return await encoders.run(entries * ENTRY_CHARS, lambda _: work())


async def _events(
    request: GenerationRequest,
    builder: ResponseBuilder,
    active: ActiveRequest,
    trace: RequestTrace,
    encoders: EncoderPool,
    *,
    with_comment: bool,
) -> AsyncGenerator[bytes]:
    """The events of a streamed answer, a long one in pieces. An error after the first one is an event of its
    own. While tokens come and nothing of them is certain, as of a long call, comments do. `with_comment`:
    another one tells the usage, for whoever counts on the way."""
    options = request.stream_options
    include = options is not None and bool(options.include_usage)
    continuous = options is not None and bool(options.continuous_usage_stats)
    scored = prompt_alternatives(request) is not None
    begun, sent = False, time.monotonic()
    try:
        async for update in active.updates():
            usage = _usage(active) if continuous else None
            show = partial(builder.chunk, update, usage, with_usage=include or continuous)
            chunk = await _beside(encoders, builder.weight(update), show) if scored else show()
            now = time.monotonic()
            if chunk is not None or now - sent >= QUIET_SECONDS:
                begun, sent = True, now
                if isinstance(chunk, list):
                    while chunk:
                        yield chunk.pop(0)
                else:
                    yield responses.COMMENT if chunk is None else chunk
        if include:
            yield builder.usage_chunk(_usage(active))
    except ApiError as error:
        if not begun:
            raise
        trace.root.fail(error_code(error))
        log.warning("stream_failed", code=error.code, reason=error.message)
        yield error.event()
    if with_comment:
        yield responses.usage_comment(_usage(active))
    yield responses.DONE
