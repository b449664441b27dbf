"""From a validated request to the token ids of its prompts: lengths, chat template, tokenizer, truncation.

Used by the two generation endpoints once the request was admitted. A prompt that cannot fit is refused by its
characters, before anybody tokenizes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_edge.errors import InvalidRequest
from mamba_server.api.chat_messages import template_messages
from mamba_server.api.errors import ContextTooLong
from mamba_server.api.model_limits import ModelLimits
from mamba_server.api.serving import TextSide
from mamba_server.text.encoder_pool import EncoderPool, GivenUp
from mamba_server.text.errors import TemplateRefused


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt."""

    token_ids: list[int]
    text: str = ""
    """What `echo` shows of it."""
    turn_boundary: int = 0
    """Tokens before the generation prompt; 0 = not a chat."""

    def last(self, tokens: int | None) -> "Prompt":
        """Only its last so many tokens; None = all."""
        cut = 0 if tokens is None else max(0, len(self.token_ids) - tokens)
        if not cut:
            return self
        return Prompt(self.token_ids[cut:], self.text, max(0, self.turn_boundary - cut))


def check_token_ids(token_ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Raises InvalidRequest unless these can be a prompt of this model."""
    if not token_ids:
        raise InvalidRequest(
            f"{param}: has no tokens; an empty prompt needs a model with a bos token", param=param
        )
    limits.check_ids(param, token_ids)


class Prompts:
    """Makes the prompts of one request. Raises InvalidRequest, ContextTooLong."""

    def __init__(self, text: TextSide, limits: ModelLimits, pool: EncoderPool) -> None:
        self._text, self._limits, self._pool = text, limits, pool

    async def of_completion(self, request: CompletionRequest) -> list[Prompt]:
        """One for each prompt of the body, in order."""
        tokenizer = self._text.tokenizer
        strings = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        if request.truncate_prompt_tokens is None:
            for string in strings:
                self._check_chars(len(string), "prompt")

        def encode(given_up: GivenUp) -> list[list[int]]:
            return [[] if given_up() else tokenizer.encode(string) for string in strings]

        encoded = iter(await self._pool.run(sum(map(len, strings)), encode))
        prompts = []
        for prompt in request.prompts:
            token_ids = next(encoded) if isinstance(prompt, str) else prompt
            if not token_ids and tokenizer.bos_id is not None:
                token_ids = [tokenizer.bos_id]
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
        tokenizer, template = self._text.tokenizer, self._text.template
        if template is None:
            raise InvalidRequest(
                "messages: this model has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        messages = template_messages(request)
        tools = request.offered_tools
        if tools and not (template.takes_tools and template.tool_calls):
            lacks = "teaches calls of a form that is not read here" if template.takes_tools else "takes none"
            raise InvalidRequest(
                f"tools: this model's chat template {lacks}; leave tools out, or send 'tool_choice': 'none'",
                param="tools",
                code="tools_not_supported",
            )
        whole = request.truncate_prompt_tokens is None

        def render(_: GivenUp) -> Prompt:
            made = template.prompt(
                tokenizer,
                messages,
                variables=request.chat_template_kwargs,
                tools=tools or None,
                generation_prompt=request.add_generation_prompt is not False,
                continue_final=bool(request.continue_final_message),
                check=lambda text: self._check_chars(len(text), "messages") if whole else None,
            )
            return Prompt(made.token_ids, turn_boundary=made.turn_boundary)

        try:
            prompt = await self._pool.run(size, render)
        except TemplateRefused as error:
            raise InvalidRequest(str(error), param="messages", code="chat_template_error") from error
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
