"""From a validated request to the token ids of its prompts: lengths, chat template, tokenizer, truncation.

Used by the two generation endpoints once the request was admitted. A prompt that cannot fit is refused by its
characters, before anybody tokenizes it.
"""

import functools
import time
from collections.abc import Sequence

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
    """Once in a process, as for unknown fields: clients repeat it."""
    log.warning("reasoning_effort_ignored", reason="the model's chat template does not use it")


def check_token_ids(token_ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Raises InvalidRequest unless these can be a prompt of this model."""
    if not token_ids:
        raise InvalidRequest(
            f"{param}: has no tokens; an empty prompt needs a model with a bos token", param=param
        )
    limits.check_ids(param, token_ids)


class PromptBuilder:
    """Makes the prompts of one request. Raises InvalidRequest, ContextTooLong."""

    def __init__(
        self, text: TextProcessor, limits: ModelLimits, pool: EncoderPool, trace: RequestTrace = UNTRACED
    ) -> None:
        self._text, self._limits, self._pool, self._trace = text, limits, pool, trace

    async def of_completion(self, request: CompletionRequest) -> list[Prompt]:
        """One for each prompt of the body, in order."""
        tokenizer = self._text.tokenizer
        strings = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        if request.truncate_prompt_tokens is None:
            for string in strings:
                self._check_chars(len(string), "prompt")

        with self._trace.span(names.API_TOKENIZE):
            encoded = await self._pool.run(
                sum(map(len, strings)), lambda given_up: completion_token_ids(tokenizer, request, given_up)
            )
        prompts = []
        for prompt, token_ids in zip(request.prompts, encoded, strict=True):
            check_token_ids(token_ids, self._limits, "prompt")
            made = Prompt(token_ids).last(request.truncate_prompt_tokens)
            if request.echo:
                cut = len(made.token_ids) < len(token_ids)
                shown = prompt if isinstance(prompt, str) and not cut else tokenizer.decode(made.token_ids)
                made = Prompt(made.token_ids, shown)
            prompts.append(made)
        return prompts

    async def of_chat(self, request: ChatCompletionRequest, size: int) -> Prompt:
        """The rendered conversation; `size`: bytes of the request."""
        template = self._text.template
        if template is None:
            raise InvalidRequest(
                "messages: this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        tools = request.offered_tools
        template = template.of(tools=bool(tools))
        if tools and not (template.takes_tools and template.tool_calls):
            lacks = "teaches calls of a form that is not read here" if template.takes_tools else "takes none"
            raise InvalidRequest(
                f"tools: this model's chat template {lacks}; leave tools out, or send 'tool_choice': 'none'",
                param="tools",
                code="tools_not_supported",
            )
        if request.reasoning_effort is not None and "reasoning_effort" not in template.variables:
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

    def _check_chars(self, chars: int, param: str) -> None:
        each = self._text.tokenizer.most_chars_per_token
        limit = self._limits.max_model_len
        if each is not None and chars > limit * each:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens, and the prompt alone has at least "
                f"{chars // each}. Shorten the {param}.",
                param=param,
            )
