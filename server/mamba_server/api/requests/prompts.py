"""From a validated request to the token ids of its prompts: lengths, chat template, tokenizer, truncation.

The endpoints use it once a request is admitted. A prompt that cannot fit is refused by its
number of characters, before it is tokenized.
"""

import functools
import time
from collections.abc import Sequence

from mamba_api.embeddings import PooledRequest, PooledTexts
from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.requests.errors import ContextTooLong
from mamba_server.api.requests.model_limits import ModelLimits
from mamba_telemetry import conventions as names
from mamba_telemetry.logs import get_logger
from mamba_telemetry.request_trace import UNTRACED, RequestTrace
from mamba_text.encoder_pool import EncoderPool
from mamba_text.errors import TemplateRefused
from mamba_text.prompt import Prompt, TextProcessor, chat_prompt, completion_token_ids

log = get_logger(__name__)


@functools.cache
def _warn_of_effort() -> None:
    """Warn, once in a process, that the chat template ignores `reasoning_effort`, which clients repeat."""
    log.warning("reasoning_effort_ignored", reason="the model's chat template does not use it")


def check_token_ids(token_ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Check that these ids can be a prompt of this model. Raises InvalidRequest."""
    if not token_ids:
        raise InvalidRequest(
            f"{param}: the prompt has no tokens; this model needs at least one, because it has no bos token",
            param=param,
        )
    limits.check_ids(param, token_ids)


class PromptBuilder:
    """Builds the prompts of one request, and checks their lengths.

    Its methods raise InvalidRequest and ContextTooLong.
    """

    def __init__(
        self, text: TextProcessor, limits: ModelLimits, pool: EncoderPool, trace: RequestTrace = UNTRACED
    ) -> None:
        self._text, self._limits, self._pool, self._trace = text, limits, pool, trace

    async def of_completion(self, request: CompletionRequest) -> list[Prompt]:
        """Tokenize each prompt of the body, in order."""
        if request.truncate_prompt_tokens is None:
            for source in request.prompts:
                self._check_length(source, "prompt")
        prompts = []
        for source, token_ids in zip(request.prompts, await self._encoded(request), strict=True):
            check_token_ids(token_ids, self._limits, "prompt")
            prompt = Prompt(token_ids).last(request.truncate_prompt_tokens)
            if request.echo:
                truncated = len(prompt.token_ids) < len(token_ids)
                own_text = None if truncated or not isinstance(source, str) else source
                text = self._text.tokenizer.decode(prompt.token_ids) if own_text is None else own_text
                prompt = Prompt(prompt.token_ids, text)
            prompts.append(prompt)
        return prompts

    async def of_texts(self, texts: PooledTexts, request: PooledRequest) -> list[Prompt]:
        """Tokenize the texts of a request that has no answer, in order."""
        if request.truncate_prompt_tokens is None:
            for source, name in zip(texts.inputs, texts.names, strict=True):
                if name not in texts.most_tokens:
                    self._check_length(source, name)
        encoded = await self._encoded(
            CompletionRequest(prompt=texts.inputs, add_special_tokens=request.add_special_tokens)
        )
        prompts = []
        for token_ids, name in zip(encoded, texts.names, strict=True):
            check_token_ids(token_ids, self._limits, name)
            first = Prompt(token_ids[: texts.most_tokens.get(name)])
            prompt = first.last(request.truncate_prompt_tokens)
            if len(prompt.token_ids) > self._limits.max_model_len:
                raise ContextTooLong(
                    f"This model's maximum context length is {self._limits.max_model_len} tokens, and a text "
                    f"of '{name}' has {len(prompt.token_ids)}. Shorten it.",
                    param=name,
                )
            prompts.append(prompt)
        return prompts

    async def _encoded(self, request: CompletionRequest) -> list[list[int]]:
        tokenizer = self._text.tokenizer
        chars = sum(len(source) for source in request.prompts if isinstance(source, str))
        with self._trace.span(names.API_TOKENIZE):
            return await self._pool.run(
                chars, lambda cancelled: completion_token_ids(tokenizer, request, cancelled)
            )

    async def of_chat(self, request: ChatCompletionRequest, size: int) -> Prompt:
        """Render and tokenize a conversation; `size`: bytes of the request's body."""
        template = self._text.template
        if template is None:
            raise InvalidRequest(
                "messages: this model has no chat template; send the prompt to /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        tools = request.offered_tools
        template = template.of(tools=bool(tools))
        if tools and not (template.takes_tools and template.tool_calls):
            lack = (
                "writes tool calls in a format that this server cannot parse"
                if template.takes_tools
                else "does not support tools"
            )
            raise InvalidRequest(
                f"tools: this model's chat template {lack}; leave tools out, or send 'tool_choice': 'none'",
                param="tools",
                code="tools_not_supported",
            )
        if request.effort is not None and "reasoning_effort" not in template.variables:
            _warn_of_effort()
        whole = request.truncate_prompt_tokens is None
        span, rendered = self._trace.begin(names.API_TEMPLATE), 0.0

        def check(text: str) -> None:
            nonlocal rendered
            rendered = time.monotonic()
            if whole:
                self._check_chars(len(text), "messages")

        try:
            prompt = await self._pool.run(
                size, lambda _: chat_prompt(template, self._text.tokenizer, request, check)
            )
        except TemplateRefused as error:
            raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error
        finally:
            if rendered:
                span.finish(rendered)
                self._trace.end(self._trace.begin(names.API_TOKENIZE, at=rendered))
            self._trace.end(span)
        check_token_ids(prompt.token_ids, self._limits, "messages")
        return prompt.last(request.truncate_prompt_tokens)

    def _check_length(self, source: object, param: str) -> None:
        if isinstance(source, str):
            self._check_chars(len(source), param)

    def _check_chars(self, chars: int, param: str) -> None:
        chars_per_token = self._text.tokenizer.most_chars_per_token
        limit = self._limits.max_model_len
        if chars_per_token is not None and chars > limit * chars_per_token:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens, and the prompt alone has at least "
                f"{chars // chars_per_token}. Shorten the {param}.",
                param=param,
            )
