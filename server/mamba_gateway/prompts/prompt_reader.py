"""`PromptReader`: converts the prompt of a request to the token ids that the engine will compute.

It works in threads, with limits on size and time: a request whose prompt is not ready in time is routed by
load alone. Without a tokenizer the bytes of the text replace the token ids, so that requests with the same
text still go to the same engine. An invalid request is passed on, and the engine reports the error.
"""

import asyncio
from collections.abc import Callable

import msgspec
from pydantic import ValidationError
from pydantic_core import from_json

from mamba_api.dialects.paths import COMPLETIONS, TEXT_FIELDS, chat_request
from mamba_api.openai import CompletionRequest
from mamba_gateway.metrics.gateway_metrics import GatewayMetrics
from mamba_gateway.prompt_prefix import PromptPrefix
from mamba_gateway.prompts.text_processors import ModelText, TextProcessors
from mamba_gateway.upstream.connector import UpstreamRequest
from mamba_prefix.adapter_salt import adapted_salt
from mamba_text.encoder_pool import EncoderPool, GivenUp
from mamba_text.errors import TemplateRefused
from mamba_text.prompt import chat_token_ids, completion_token_ids

MAX_BODY_BYTES = 512 * 1024
"""Maximum size in bytes of a body that is read. Parsing blocks everything else, and computing such a prompt
takes so long that any engine will do."""
MAX_PENDING = 16
"""Maximum number of prompts that are read at the same time; further requests are routed without their
prompt."""
READ_SECONDS = 0.25
"""Longest time, in seconds, that a request waits for its prompt to be read."""


class _Texts(msgspec.Struct, frozen=True):
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    cache_salt: str | None = None


class PromptReader:
    """Prompt reader of one gateway."""

    def __init__(
        self,
        texts: TextProcessors,
        metrics: GatewayMetrics,
        adapter_of: Callable[[str | None], str] = lambda _: "",
    ) -> None:
        """Create the reader. `adapter_of` returns the fingerprint of the adapter of a name; "" = none."""
        self._texts, self._metrics, self._adapter_of = texts, metrics, adapter_of
        self._encoders = EncoderPool()
        self._pending = 0

    async def read(self, request: UpstreamRequest) -> PromptPrefix | None:
        """Return the (first) prompt of the request; None if it cannot be read, or not in time."""
        prompt, outcome = await self._read(request)
        self._metrics.prompt(outcome).inc()
        return prompt

    async def _read(self, request: UpstreamRequest) -> tuple[PromptPrefix | None, str]:
        text, adapter = self._texts.for_model(request.model), self._adapter_of(request.model)
        if len(request.body) > MAX_BODY_BYTES:
            return None, "too_large"
        if text is None:
            return text_of(request.path, request.body, adapter), "no_tokenizer"
        if self._pending >= MAX_PENDING:
            return None, "busy"
        path, body = request.path, request.body
        self._pending += 1
        try:
            async with asyncio.timeout(READ_SECONDS):
                prompt = await self._encoders.run(
                    len(body), lambda given_up: prompt_of(path, body, text, given_up, adapter)
                )
        except TimeoutError:
            return None, "late"
        finally:
            self._pending -= 1
        return prompt, "read" if prompt is not None else "unusable"


def prompt_of(
    path: str, body: bytes, text: ModelText, given_up: GivenUp = lambda: False, adapter: str = ""
) -> PromptPrefix | None:
    """Return the (first) prompt in a body, as an engine with these files reads it; None if it is invalid.

    `adapter`: fingerprint of the adapter that computes it, with which alone it shares prefixes.
    """
    try:
        fields = from_json(body, allow_inf_nan=False)
        if path != COMPLETIONS:
            chat = chat_request(path, fields)
            if text.processor.template is None:
                return None
            token_ids = chat_token_ids(text.processor.template, chat, text.segments.encode)
            cut, salt = chat.truncate_prompt_tokens, chat.cache_salt
            whole = chat.prompt_logprobs is not None
        else:
            completion = CompletionRequest.model_validate(fields)
            token_ids = completion_token_ids(text.processor.tokenizer, completion, given_up)[0]
            cut, salt = completion.truncate_prompt_tokens, completion.cache_salt
            echoed = completion.echo and completion.logprobs is not None
            whole = completion.prompt_logprobs is not None or bool(echoed)
    except (ValidationError, ValueError, RecursionError, TemplateRefused):
        return None
    if cut is not None:
        token_ids = token_ids[-cut:]
    salt = adapted_salt(adapter, salt or "")
    return PromptPrefix.of(token_ids, salt, computed_whole=whole) if token_ids else None


def text_of(path: str, body: bytes, adapter: str = "") -> PromptPrefix | None:
    """Return the messages or prompts in a body as bytes; None if the body is invalid.

    The next turn of a conversation then begins with the same bytes as the previous one.
    """
    try:
        fields = msgspec.json.decode(body, type=_Texts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    text = b"".join(bytes(getattr(fields, name)) for name in TEXT_FIELDS.get(path, ()))
    return PromptPrefix.of_text(text, adapted_salt(adapter, fields.cache_salt or "")) if text else None
