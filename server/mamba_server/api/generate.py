"""The two endpoints that generate: read, validate, admit, submit, answer.

ASGI applications that the router calls; what they raise becomes the OpenAI envelope in `front`.
"""

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from mamba_api.openai import ChatCompletionRequest, CompletionRequest, GenerationRequest
from mamba_server.api import answers
from mamba_server.api.chat_answer import ChatAnswer
from mamba_server.api.completion_answer import CompletionAnswer
from mamba_server.api.errors import ApiError, InvalidRequest, NotReady
from mamba_server.api.event_stream import send_events, send_json, while_connected
from mamba_server.api.generation import Generation, Update
from mamba_server.api.request_body import parse_json_object, read_body, validate
from mamba_server.api.sampling import ModelLimits, output_tokens, prompt_ids, sampling_params
from mamba_server.api.serving import Serving, TextSide
from mamba_server.text.chat_template import ChatPrompt
from mamba_server.text.errors import TemplateRefused
from mamba_server.text.tokenizer import THREAD_FROM_CHARS
from mamba_server.wire import AddRequest, TokenIds
from mamba_telemetry.logs import get_logger

log = get_logger(__name__)
Checked = TypeVar("Checked", bound=GenerationRequest)


class Answer(Protocol):
    """What both kinds of answer offer."""

    def chunk(self, update: Update, usage: answers.UsageBody | None, *, with_usage: bool) -> bytes | None: ...
    def usage_chunk(self, usage: answers.UsageBody) -> bytes: ...
    def collect(self, update: Update) -> None: ...
    def whole(self, usage: answers.UsageBody) -> bytes: ...


class _Endpoint(ABC):
    """What the two have in common."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._serving.drain.request():
            body = await read_body(Request(scope), receive, self._serving.settings.max_body_bytes)
            await while_connected(receive, self._respond(parse_json_object(body), scope, send))

    @abstractmethod
    async def _respond(self, raw: dict[str, Any], scope: Scope, send: Send) -> None:
        """Answer the parsed body `raw`."""

    def _check(self, model: type[Checked], raw: dict[str, Any]) -> tuple[Checked, TextSide, ModelLimits]:
        request = validate(model, raw)
        self._serving.check_model(request.model)
        limits = self._serving.limits()
        if self._serving.text is None:
            raise NotReady("the tokenizer is not loaded yet")
        return request, self._serving.text, limits

    async def _run(
        self,
        request: GenerationRequest,
        answer: Answer,
        adds: list[AddRequest],
        text: TextSide,
        scope: Scope,
        send: Send,
    ) -> None:
        fields = scope["log_fields"]
        fields["answer"] = adds[0].request_id
        serving = self._serving
        serving.admit(len(adds), request.n or 1)
        run = Generation(serving.engine, text.tokenizer, adds, request.stops, serving.metrics)
        try:
            async with run:
                if request.stream:
                    await send_events(send, _events(request, answer, run))
                else:
                    async for update in run.updates():
                        answer.collect(update)
                    await send_json(send, answer.whole(_usage(run)))
        finally:
            fields.update(
                prompt_tokens=run.counts.prompt,
                generated_tokens=run.counts.completion,
                cached_tokens=run.counts.cached_total,
            )


class Completions(_Endpoint):
    """`POST /v1/completions`."""

    async def _respond(self, raw: dict[str, Any], scope: Scope, send: Send) -> None:
        request, text, limits = self._check(CompletionRequest, raw)
        answer_id = f"cmpl-{uuid.uuid4().hex}"
        prompts: list[tuple[list[int], str]] = []
        adds: list[AddRequest] = []
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        encoded = iter(await text.tokenizer.encode_all(texts))
        for place, prompt in enumerate(request.prompts):
            given = next(encoded) if isinstance(prompt, str) else prompt
            if not given and text.tokenizer.bos_id is not None:
                given = [text.tokenizer.bos_id]
            ids = prompt_ids(given, limits, "prompt")
            shown = prompt if isinstance(prompt, str) else text.tokenizer.decode(ids) if request.echo else ""
            prompts.append((ids, shown))
            most = output_tokens(request, len(ids), limits)
            params = sampling_params(request, text.defaults, limits, most)
            adds.append(_add(request, f"{answer_id}-{place}", ids, params, scope))
        answer = CompletionAnswer(
            request,
            text.tokenizer,
            prompts,
            answer_id=answer_id,
            created=int(time.time()),
            model=self._serving.model_name,
        )
        await self._run(request, answer, adds, text, scope, send)


class ChatCompletions(_Endpoint):
    """`POST /v1/chat/completions`."""

    async def _respond(self, raw: dict[str, Any], scope: Scope, send: Send) -> None:
        request, text, limits = self._check(ChatCompletionRequest, raw)
        prompt = await self._prompt(request, text)
        ids = prompt_ids(prompt.token_ids, limits, "messages")
        most = output_tokens(request, len(ids), limits)
        params = sampling_params(request, text.defaults, limits, most)
        answer_id = f"chatcmpl-{uuid.uuid4().hex}"
        add = _add(request, answer_id, ids, params, scope, prompt.turn_boundary)
        answer = ChatAnswer(
            request,
            text.tokenizer,
            ids,
            answer_id=answer_id,
            created=int(time.time()),
            model=self._serving.model_name,
        )
        await self._run(request, answer, [add], text, scope, send)

    async def _prompt(self, request: ChatCompletionRequest, text: TextSide) -> ChatPrompt:
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


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As templates expect it: content one string, and no role they have never heard of."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    return {**message, "role": role, "content": content or ""}


def _add(
    request: GenerationRequest,
    request_id: str,
    token_ids: list[int],
    params: Any,
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


def _usage(run: Generation) -> answers.UsageBody:
    return answers.usage_body(run.counts.prompt, run.counts.completion, run.counts.cached_total)


async def _events(request: GenerationRequest, answer: Answer, run: Generation) -> AsyncGenerator[bytes]:
    """The events of a streamed answer. An error after the first one is an event of its own."""
    options = request.stream_options
    include = options is not None and bool(options.include_usage)
    continuous = options is not None and bool(options.continuous_usage_stats)
    begun = False
    try:
        async for update in run.updates():
            usage = _usage(run) if continuous else None
            chunk = answer.chunk(update, usage, with_usage=include or continuous)
            if chunk is not None:
                begun = True
                yield chunk
        if include:
            yield answer.usage_chunk(_usage(run))
    except ApiError as error:
        if not begun:
            raise
        log.warning("stream_failed", code=error.code, reason=error.message)
        yield b"data: " + error.envelope() + b"\n\n"
    yield answers.DONE
