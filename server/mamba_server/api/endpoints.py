"""The two endpoints that generate: from a validated request to token ids, the engine and the answer.

FastAPI routes call the methods of `GenerationEndpoints`; what they raise becomes the OpenAI envelope.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_edge.errors import ApiError, InvalidRequest, NotReady
from mamba_edge.sending import send_events, send_json, while_connected
from mamba_server.api import responses
from mamba_server.api.active_request import ActiveRequest, Update
from mamba_server.api.chat_response import ChatResponseBuilder
from mamba_server.api.completion_response import CompletionResponseBuilder
from mamba_server.api.responses import UsageBody
from mamba_server.api.sampling import ModelLimits, check_token_ids, output_tokens, sampling_params
from mamba_server.api.serving import Serving, TextSide
from mamba_server.text.chat_template import ChatPrompt
from mamba_server.text.errors import TemplateRefused
from mamba_server.text.tokenizer import THREAD_FROM_CHARS
from mamba_server.wire import AddRequest, SamplingParams, TokenIds
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)


class ResponseBuilder(Protocol):
    """What both kinds of answer offer."""

    def chunk(self, update: Update, usage: UsageBody | None, *, with_usage: bool) -> bytes | None: ...
    def usage_chunk(self, usage: UsageBody) -> bytes: ...
    def collect(self, update: Update) -> None: ...
    def whole(self, usage: UsageBody) -> bytes: ...


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
        return GeneratedResponse(lambda send: self._complete(body, request.scope, send))

    async def chat_completions(self, body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return GeneratedResponse(lambda send: self._answer(body, request.scope, send))

    async def _complete(self, request: CompletionRequest, scope: Scope, send: Send) -> None:
        text, limits = self._model(request)
        response_id = f"cmpl-{uuid.uuid4().hex}"
        prompts: list[tuple[list[int], str]] = []
        adds: list[AddRequest] = []
        strings = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        encoded = iter(await text.tokenizer.encode_all(strings))
        for place, prompt in enumerate(request.prompts):
            token_ids = next(encoded) if isinstance(prompt, str) else prompt
            if not token_ids and text.tokenizer.bos_id is not None:
                token_ids = [text.tokenizer.bos_id]
            check_token_ids(token_ids, limits, "prompt")
            shown = prompt if isinstance(prompt, str) else ""
            if request.echo and not isinstance(prompt, str):
                shown = text.tokenizer.decode(token_ids)
            prompts.append((token_ids, shown))
            most = output_tokens(request, len(token_ids), limits)
            params = sampling_params(request, text.defaults, limits, most)
            adds.append(_add_request(request, f"{response_id}-{place}", token_ids, params, scope))
        builder = CompletionResponseBuilder(
            request,
            text.tokenizer,
            prompts,
            response_id=response_id,
            created=int(time.time()),
            model=self._serving.model_name,
        )
        await self._run(request, builder, adds, text, scope, send)

    async def _answer(self, request: ChatCompletionRequest, scope: Scope, send: Send) -> None:
        text, limits = self._model(request)
        prompt = await self._chat_prompt(request, text)
        check_token_ids(prompt.token_ids, limits, "messages")
        most = output_tokens(request, len(prompt.token_ids), limits)
        params = sampling_params(request, text.defaults, limits, most)
        response_id = f"chatcmpl-{uuid.uuid4().hex}"
        add = _add_request(request, response_id, prompt.token_ids, params, scope, prompt.turn_boundary)
        builder = ChatResponseBuilder(
            request,
            text.tokenizer,
            prompt.token_ids,
            response_id=response_id,
            created=int(time.time()),
            model=self._serving.model_name,
        )
        await self._run(request, builder, [add], text, scope, send)

    def _model(self, request: GenerationRequest) -> tuple[TextSide, ModelLimits]:
        self._serving.check_model(request.model)
        limits = self._serving.limits()
        if self._serving.text is None:
            raise NotReady("the tokenizer is not loaded yet")
        return self._serving.text, limits

    async def _chat_prompt(self, request: ChatCompletionRequest, text: TextSide) -> ChatPrompt:
        template = text.template
        if template is None:
            raise InvalidRequest(
                f"the model '{self._serving.model_name}' has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        tools = None
        if request.tools and request.tool_choice != "none":
            if not template.takes_tools:
                raise InvalidRequest(
                    "tools: this model's chat template does not support tools",
                    param="tools",
                    code="unsupported",
                )
            tools = [tool.model_dump(exclude_none=True) for tool in request.tools]
        messages = [_message(message.model_dump(exclude_none=True)) for message in request.messages]
        size = sum(len(message["content"]) for message in messages)
        variables = request.chat_template_kwargs
        try:
            if size < THREAD_FROM_CHARS and len(messages) < 64:
                return template.prompt(text.tokenizer, messages, tools=tools, variables=variables)
            return await asyncio.to_thread(
                template.prompt, text.tokenizer, messages, tools=tools, variables=variables
            )
        except TemplateRefused as error:
            raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error

    async def _run(
        self,
        request: GenerationRequest,
        builder: ResponseBuilder,
        adds: list[AddRequest],
        text: TextSide,
        scope: Scope,
        send: Send,
    ) -> None:
        fields = scope["log_fields"]
        fields["answer"] = adds[0].request_id
        serving = self._serving
        serving.admit(len(adds), request.n or 1)
        active = ActiveRequest(serving.engine, text.tokenizer, adds, request.stops, serving.metrics)
        try:
            async with active:
                if request.stream:
                    await send_events(send, _events(request, builder, active))
                else:
                    async for update in active.updates():
                        builder.collect(update)
                    await send_json(send, builder.whole(_usage(active)))
        finally:
            fields.update(
                prompt_tokens=active.counts.prompt,
                generated_tokens=active.counts.completion,
                cached_tokens=active.counts.cached_total,
            )


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As templates expect it: content one string, and no role they have never heard of."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    return {**message, "role": role, "content": content or ""}


def _add_request(
    request: GenerationRequest,
    request_id: str,
    token_ids: list[int],
    params: SamplingParams,
    scope: Scope,
    turn_boundary: int = 0,
) -> AddRequest:
    return AddRequest(
        request_id=request_id,
        token_ids=TokenIds(token_ids),
        params=params,
        n=request.n or 1,
        priority=request.priority or 0,
        cache_salt=request.cache_salt or "",
        turn_boundary=turn_boundary,
        arrival=scope["arrival"],
        traceparent=scope["traceparent"],
    )


def _usage(active: ActiveRequest) -> UsageBody:
    counts = active.counts
    return responses.usage_body(counts.prompt, counts.completion, counts.cached_total)


async def _events(
    request: GenerationRequest, builder: ResponseBuilder, active: ActiveRequest
) -> AsyncGenerator[bytes]:
    """The events of a streamed answer. An error after the first one is an event of its own."""
    options = request.stream_options
    include = options is not None and bool(options.include_usage)
    continuous = options is not None and bool(options.continuous_usage_stats)
    begun = False
    try:
        async for update in active.updates():
            usage = _usage(active) if continuous else None
            chunk = builder.chunk(update, usage, with_usage=include or continuous)
            if chunk is not None:
                begun = True
                yield chunk
        if include:
            yield builder.usage_chunk(_usage(active))
    except ApiError as error:
        if not begun:
            raise
        log.warning("stream_failed", code=error.code, reason=error.message)
        yield error.event()
    yield responses.DONE
