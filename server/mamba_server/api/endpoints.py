"""The endpoints that generate: from a validated request to token ids, the engine and the answer.

FastAPI routes call the methods of `GenerationEndpoints`; their ApiErrors become OpenAI error objects.
"""

import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.dialects.messages_chat import chat_of_messages
from mamba_api.dialects.messages_request import CountTokensRequest, MessagesRequest
from mamba_api.dialects.paths import CHAT_COMPLETIONS, MESSAGES, RESPONSES
from mamba_api.dialects.responses_chat import chat_of_responses, repeated_settings
from mamba_api.dialects.responses_request import ResponsesRequest
from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_edge.app.application import JsonResponse
from mamba_edge.app.validation import translated
from mamba_edge.errors import InvalidRequest, NotReady
from mamba_edge.exchange.asgi_responses import USAGE_HEADER, send_events, send_json_pieces, while_connected
from mamba_edge.exchange.explain_header import wants_explanation
from mamba_edge.exchange.request_body import RawHeaders
from mamba_edge.exchange.request_context import RequestContext, context_of
from mamba_edge.history.kept_answer import HISTORY_HEADER, KEPT, KeptAnswer
from mamba_server.api.adapter_table import own_salt
from mamba_server.api.answers.active_request import ActiveRequest
from mamba_server.api.answers.answer_bytes import (
    ENTRY_CHARS,
    ResponseBuilder,
    answer_events,
    free_scores,
    whole_answer,
)
from mamba_server.api.answers.answer_reader import AnswerFormat
from mamba_server.api.answers.chat_response import ChatResponseBuilder
from mamba_server.api.answers.completion_response import CompletionResponseBuilder
from mamba_server.api.answers.items_response import ItemsResponseBuilder
from mamba_server.api.answers.messages_response import MessagesResponseBuilder
from mamba_server.api.answers.requested_explanation import RequestedExplanation
from mamba_server.api.forms.followed_schema import LEFT_OUT_HEADER
from mamba_server.api.forms.output_grammar import GrammarCheck, OutputForm, output_grammar
from mamba_server.api.prompt_state import NO_HAND_OVER, kept_state
from mamba_server.api.requests.bad_words import bad_word_ids
from mamba_server.api.requests.cost_header import request_prices, wants_cost
from mamba_server.api.requests.hand_over_header import comes_from_gateway, hands_over, source_of
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_server.api.requests.pin_header import check_pins, pin_seconds
from mamba_server.api.requests.prompts import PromptBuilder
from mamba_server.api.requests.sampling import output_tokens, prompt_alternatives, sampling_params
from mamba_server.api.serving import ChosenModel, Places, Serving
from mamba_server.wire import AddRequest, Fetch, TokenIds
from mamba_telemetry import conventions as names
from mamba_telemetry.logs import get_logger
from mamba_text.prompt import Prompt, TextProcessor
from mamba_text.sequence_text import TextVisibility

log = get_logger(__name__)
_ID_PREFIXES = {CHAT_COMPLETIONS: "chatcmpl-", MESSAGES: "msg_", RESPONSES: "resp_"}
"""Beginning of the identifiers of answers, by path."""


class GeneratedResponse(Response):
    """Sends an answer by ASGI itself: encoded bytes go straight to `send`.

    `work` is cancelled when the client disconnects.
    """

    def __init__(self, work: Callable[[Send], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_connected(receive, self._work(send))


class GenerationEndpoints:
    """Answers the requests that generate text, in every dialect, for one served model."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """Continue a prompt: a string, strings, token ids, or lists of token ids."""
        return GeneratedResponse(lambda send: self._complete(body, context_of(request.scope), send))

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return GeneratedResponse(lambda send: self._answer(body, context_of(request.scope), send))

    async def messages(self, body: MessagesRequest, request: Request) -> Response:
        """Answer a conversation in the format of Anthropic's API."""
        chat, context = translated(chat_of_messages, body), context_of(request.scope)
        return GeneratedResponse(lambda send: self._answer(chat, context, send, MESSAGES))

    async def responses(self, body: ResponsesRequest, request: Request) -> Response:
        """Answer a conversation in the format of the Responses API."""
        context = context_of(request.scope)
        announced = context.header_values.get(HISTORY_HEADER)
        turn = None
        if announced is None:
            turn = await self._serving.history.open(context.client, raw := await request.body())
            if turn is not None and turn.body is not raw:
                context.body_share.take(len(turn.body))
                context.body_bytes = len(turn.body)
                body = translated(ResponsesRequest.model_validate, from_json(turn.body))
        chat = translated(chat_of_responses, body)
        settings = repeated_settings(body)
        if not (turn.keeps if turn is not None else announced == KEPT):
            settings["store"] = False

        async def work(send: Send) -> None:
            if turn is not None and turn.keeps:
                send = KeptAnswer(send, turn, context.direct)
            await self._answer(chat, context, send, RESPONSES, settings)

        return GeneratedResponse(work)

    async def count_tokens(self, body: CountTokensRequest, request: Request) -> Response:
        """Count the tokens of the prompt that a message request would have."""
        chat, context = translated(chat_of_messages, body), context_of(request.scope)
        text, limits = self._model(chat)
        with self._serving.admit(1, 1):
            prompt_builder = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            prompt = await prompt_builder.of_chat(chat, context.body_bytes)
        return JsonResponse({"input_tokens": len(prompt.token_ids)})

    async def _complete(self, request: CompletionRequest, context: RequestContext, send: Send) -> None:
        with self._serving.using(request.model) as model:
            await self._complete_with(model, request, context, send)

    async def _complete_with(
        self, model: ChosenModel, request: CompletionRequest, context: RequestContext, send: Send
    ) -> None:
        text, limits = self._model(request)
        self._describe("text_completion", request, context, model)
        pin_seconds(context.header_values)
        wants_explanation(context.header_values)
        with self._serving.admit(len(request.prompts), request.n or 1) as places:
            prompt_builder = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            prompts = await prompt_builder.of_completion(request)
            form = await output_grammar(request, text, self._check_grammar(context, places))
        priorities = self._serving.settings.anonymous_priority
        account = self._serving.usage.account(context.client, model.adapter_name)
        response_id = f"cmpl-{uuid.uuid4().hex}"
        adds = [
            _add_request(
                request,
                f"{response_id}-{place}",
                prompt,
                text,
                limits,
                context,
                form,
                model=model,
                account=account,
                priorities=priorities,
                fetch=self._source(context) if len(prompts) == 1 else None,
            )
            for place, prompt in enumerate(prompts)
        ]
        self._reserve_scores(request, prompts, context)
        builder = CompletionResponseBuilder(
            request,
            text.tokenizer,
            [(prompt.token_ids, prompt.text) for prompt in prompts],
            response_id=response_id,
            created=int(time.time()),
            model=model.name,
        )
        await self._run(request, builder, adds, text, context, send, headers=_headers(form))

    async def _answer(
        self,
        request: ChatCompletionRequest,
        context: RequestContext,
        send: Send,
        dialect: str = CHAT_COMPLETIONS,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Answer a conversation in the form of the path `dialect`; the answer repeats `settings`."""
        with self._serving.using(request.model) as model:
            await self._answer_with(model, request, context, send, dialect, settings)

    async def _answer_with(
        self,
        chosen: ChosenModel,
        request: ChatCompletionRequest,
        context: RequestContext,
        send: Send,
        dialect: str,
        settings: Mapping[str, Any],
    ) -> None:
        text, limits = self._model(request)
        self._describe("chat", request, context, chosen)
        check_pins(request)
        pin_seconds(context.header_values)
        wants_explanation(context.header_values)
        with self._serving.admit(1, request.n or 1) as places:
            prompt_builder = PromptBuilder(text, limits, self._serving.encoders, context.trace)
            prompt = await prompt_builder.of_chat(request, context.body_bytes)
            form = await output_grammar(request, text, self._check_grammar(context, places), prompt.opening)
        response_id = f"{_ID_PREFIXES[dialect]}{uuid.uuid4().hex}"
        priorities = self._serving.settings.anonymous_priority
        add = _add_request(
            request,
            response_id,
            prompt,
            text,
            limits,
            context,
            form,
            model=chosen,
            account=self._serving.usage.account(context.client, chosen.adapter_name),
            priorities=priorities,
            fetch=self._source(context),
        )
        self._reserve_scores(request, [prompt], context)
        answer_format = AnswerFormat.of(request, text.template)
        readers, model = answer_format.readers(request, text, prompt), chosen.name
        builder: ResponseBuilder
        if dialect == MESSAGES:
            builder = MessagesResponseBuilder(
                readers[0], response_id=response_id, model=model, request_id=context.request_id
            )
        elif dialect == RESPONSES:
            builder = ItemsResponseBuilder(
                readers[0],
                response_id=response_id,
                created=int(time.time()),
                model=model,
                settings=settings,
                request_id=context.request_id,
            )
        else:
            builder = ChatResponseBuilder(
                request,
                text.tokenizer,
                prompt.token_ids,
                response_id=response_id,
                created=int(time.time()),
                model=model,
                readers=readers,
            )
        markers = text.tokenizer.ids_of(answer_format.markers)
        await self._run(request, builder, [add], text, context, send, markers, headers=_headers(form))

    def _reserve_scores(
        self, request: GenerationRequest, prompts: Sequence[Prompt], context: RequestContext
    ) -> None:
        """Reserve memory for the log-probabilities of prompts out of the budget for held bodies.

        Raises InvalidRequest, TooManyBodies.
        """
        alternatives = prompt_alternatives(request)
        if alternatives is None:
            return
        copies = (request.n or 1) if isinstance(request, CompletionRequest) else 1
        tokens = sum(len(prompt.token_ids) for prompt in prompts)
        size = tokens * (1 + alternatives) * ENTRY_CHARS * copies
        limit = self._serving.settings.max_held_body_bytes
        if size > limit:
            param = "prompt_logprobs" if request.prompt_logprobs == alternatives else "logprobs"
            raise InvalidRequest(
                f"{param}: log-probabilities of {tokens} prompt tokens with {alternatives} alternatives"
                f"{f', {copies} times,' if copies > 1 else ''} take about {size} bytes, and the limit is "
                f"{limit}; ask for fewer of them, or send several requests",
                param=param,
            )
        context.body_share.take(size)

    def _describe(
        self, operation: str, request: GenerationRequest, context: RequestContext, model: ChosenModel
    ) -> None:
        """Write the attributes of the request's own trace span; they never contain prompts or answers."""
        trace = context.trace
        if trace.recording:
            trace.root.set(names.OPERATION, operation)
            trace.root.set(names.PROVIDER, "mambaserve")
            trace.root.set(names.REQUEST_MODEL, model.name)
            trace.root.set(names.REQUEST_STREAM, bool(request.stream))

    def _takes_headers(self, context: RequestContext) -> bool:
        """Return whether the headers by which states are moved count for this request."""
        serving = self._serving
        return serving.moves_states and comes_from_gateway(context, serving.keys)

    def _source(self, context: RequestContext) -> Fetch | None:
        return source_of(context) if self._takes_headers(context) else None

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
        """Generate the answer and send it.

        Args:
            request: the validated body.
            builder: builds the answer's JSON.
            adds: the prompts, as the engine receives them.
            text: tokenizer and chat template.
            context: context of the HTTP request.
            send: sends ASGI messages to the client.
            visible_special: special tokens that stay in the text, because the answer is parsed by them.
            headers: additional response headers.
        """
        if self._takes_headers(context) and hands_over(context):
            await self._hand_over(request, adds, text, context, send, headers)
            return
        fields = context.log_fields
        fields["answer"] = adds[0].request_id
        serving = self._serving
        visibility = TextVisibility(
            request.stops,
            special_tokens=request.skip_special_tokens is False,
            stop=bool(request.include_stop_str_in_output),
            visible_special=visible_special,
        )
        trace = context.trace
        explanation = None
        if adds[0].explain:
            # The prompts of a completion have the identifier of the answer and their number.
            answer_id = adds[0].request_id.removesuffix("-0")
            explanation = RequestedExplanation.of(
                text.tokenizer, adds, answer_id, context, serving.explanations, serving.keys
            )
        active = ActiveRequest(
            serving.engine, text.tokenizer, adds, visibility, serving.metrics, trace, serving.usage
        )
        active.counts.prices = request_prices(context.header_values)
        try:
            async with active:
                if request.stream:
                    comment = context.header_values.get(USAGE_HEADER) == b"1"
                    events = answer_events(
                        request, builder, active, trace, serving.encoders, explanation, with_comment=comment
                    )
                    direct = send if isinstance(send, KeptAnswer) else context.direct
                    await send_events(send, events, direct, headers)
                else:
                    whole = await whole_answer(builder, active, serving.encoders, explanation)
                    await send_json_pieces(send, whole, headers)
        finally:
            free_scores(active.scores, serving.encoders)
            trace.root.set(names.RESPONSE_ID, adds[0].request_id)
            trace.root.set(names.INPUT_TOKENS, active.counts.prompt)
            trace.root.set(names.OUTPUT_TOKENS, active.counts.completion)
            trace.root.set(names.CACHED_TOKENS, active.counts.cached_total)
            fields.update(
                prompt_tokens=active.counts.prompt,
                generated_tokens=active.counts.completion,
                cached_tokens=active.counts.cached_total,
            )

    async def _hand_over(
        self,
        request: GenerationRequest,
        adds: list[AddRequest],
        text: TextProcessor,
        context: RequestContext,
        send: Send,
        headers: RawHeaders,
    ) -> None:
        """Compute the prompt, keep its state for the engine that writes the answer, and send its identifier.

        Several prompts, and prompts whose tokens are scored, are not handed over: the depth is 0.
        """
        serving = self._serving
        hand_over, tokens, cached = NO_HAND_OVER, len(adds[0].token_ids), 0
        if len(adds) == 1 and prompt_alternatives(request) is None:
            add = msgspec.structs.replace(
                adds[0], n=1, fetch=None, hand_over=True,
                params=msgspec.structs.replace(adds[0].params, max_tokens=0, logprobs=-1, grammar=""),
            )  # fmt: skip
            hand_over, cached = await kept_state(serving, text.tokenizer, add, context.trace)
        context.log_fields.update(prompt_tokens=tokens, cached_tokens=cached, handed_over=hand_over.depth)
        ready = serving.engine.require_ready()
        body = {
            "handover": {
                "address": ready.transfer_address,
                "incarnation": ready.incarnation,
                "export": hand_over.export,
                "depth": hand_over.depth,
                "prompt_tokens": tokens,
                "cached_tokens": cached,
                "lease_seconds": hand_over.lease,
            }
        }
        await send_json_pieces(send, [msgspec.json.encode(body)], headers)


def _add_request(
    request: GenerationRequest,
    request_id: str,
    prompt: Prompt,
    text: TextProcessor,
    limits: ModelLimits,
    context: RequestContext,
    form: OutputForm,
    *,
    model: ChosenModel,
    account: int,
    priorities: bool,
    fetch: Fetch | None,
) -> AddRequest:
    """Build the message that submits one prompt to the engine. Raises InvalidRequest.

    Args:
        request: the client's request.
        request_id: identifier of the message.
        prompt: the prompt.
        text: tokenizer and defaults of the model.
        limits: limits of the model.
        context: HTTP context, with client and headers.
        form: form that the output must have.
        model: model that the request has chosen.
        account: number of the account to which the request's cost is added.
        priorities: whether the priority of clients without a name has an effect, too.
        fetch: source of the prompt's state; None = no engine has it.
    """
    client = context.client
    seconds = pin_seconds(context.header_values)
    pins = (*prompt.pins, (len(prompt.token_ids), seconds)) if seconds else prompt.pins
    max_tokens = output_tokens(request, len(prompt.token_ids), limits)
    return AddRequest(
        request_id=request_id,
        token_ids=TokenIds(prompt.token_ids),
        params=sampling_params(
            request,
            text.defaults,
            limits,
            max_tokens,
            form.grammar,
            form.thoughts,
            bad_word_ids(request.bad_words or (), text.tokenizer),
        ),
        n=request.n or 1,
        priority=(request.priority or 0) if client or priorities else 0,
        client=client,
        cache_salt=own_salt(request.cache_salt),
        adapter=model.adapter,
        pins=pins,
        turn_boundary=prompt.turn_boundary,
        arrival=context.arrival,
        fetch=fetch,
        explain=wants_explanation(context.header_values),
        account=account,
        reports_cost=wants_cost(context.header_values),
    )


def _headers(form: OutputForm) -> RawHeaders:
    """Return the response header that names the keys of the form which the answer does not follow."""
    return [(LEFT_OUT_HEADER.lower().encode(), ", ".join(form.left_out).encode())] if form.left_out else ()
