"""Turns a validated request into the token ids of its prompts, in one way for API and gateway.

The API runs the ids and the gateway looks up which engine can resume them: a prompt is only found if both
have the same ids. The messages of a chat are converted to the form that chat templates expect. Only a
template refuses requests here; limits are checked by the API.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import Encoding

from mamba_api.openai import ChatCompletionRequest, CompletionRequest
from mamba_api.openai_fields import ChatMessage
from mamba_api.openai_tools import INPUT
from mamba_text import strict_json
from mamba_text.chat_template import ChatTemplate
from mamba_text.encoder_pool import GivenUp
from mamba_text.errors import TemplateRefused
from mamba_text.generation_defaults import GenerationDefaults
from mamba_text.tokenizer import Tokenizer

_PLAIN = {"role", "content"}
_COMMON_ROLES = {"developer": "system"}
"""Roles that templates know, by those that they do not know."""


@dataclass(frozen=True, slots=True)
class TextProcessor:
    """Turns requests into prompts, with the tokenizer, chat template and defaults of a model directory."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: GenerationDefaults

    @classmethod
    def load(cls, directory: Path) -> "TextProcessor":
        """Load the text side of a model directory. Raises TextError."""
        tokenizer = Tokenizer.load(directory)
        template = ChatTemplate.load(directory, tokenizer)
        return cls(tokenizer, template, GenerationDefaults.load(directory))


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as token ids."""

    token_ids: list[int]
    text: str = ""
    """Text of the prompt that a completion repeats if its request sets `echo`."""
    turn_boundary: int = 0
    """Number of tokens before the generation prompt; 0 = not a chat."""
    pins: tuple[tuple[int, float], ...] = ()
    """Prefixes that are to stay cached: number of tokens, and seconds for which they stay."""
    opening: str = ""
    """Beginning of the answer that is part of the prompt: the generation prompt, or the message that is
    continued."""

    def last(self, tokens: int | None) -> "Prompt":
        """Return a prompt of only the last `tokens` tokens; None = all."""
        cut = 0 if tokens is None else max(0, len(self.token_ids) - tokens)
        if not cut:
            return self
        boundary = max(0, self.turn_boundary - cut)
        pins = tuple((depth - cut, seconds) for depth, seconds in self.pins if depth > cut)
        return replace(self, token_ids=self.token_ids[cut:], turn_boundary=boundary, pins=pins)


def completion_token_ids(
    tokenizer: Tokenizer, request: CompletionRequest, given_up: GivenUp = lambda: False
) -> list[list[int]]:
    """Return the token ids of each prompt; an empty prompt gets the beginning-of-sequence token."""
    prompts = []
    special = request.add_special_tokens is not False
    for prompt in request.prompts:
        if isinstance(prompt, str):
            token_ids = [] if given_up() else tokenizer.encode(prompt, special=special)
        else:
            token_ids = prompt
        prompts.append(token_ids or ([] if tokenizer.bos_id is None else [tokenizer.bos_id]))
    return prompts


def encoded_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: list[dict[str, Any]],
    *,
    variables: dict[str, Any] | None = None,
    tools: list[dict[str, Any]] | None = None,
    generation_prompt: bool = True,
    continue_final: bool = False,
    check: Callable[[str], None] = lambda _: None,
    pinned: Mapping[int, float] = MappingProxyType({}),
) -> Prompt:
    """Return the prompt of messages, rendered by the template.

    The template writes the special tokens itself, and the tokenizer adds none. The turn boundary is where the
    next turn will resume: the tokens that end at or before the text rendered without generation prompt.
    Raises TemplateRefused.

    Args:
        template: the model's chat template.
        tokenizer: the model's tokenizer.
        messages: the conversation, in the form that templates expect.
        variables: further variables of the template.
        tools: the tools that the model may call.
        generation_prompt: whether the prompt ends with the beginning of an answer.
        continue_final: whether the model continues the last message.
        check: called with the text before it is encoded; may raise.
        pinned: by number of messages, the seconds for which the prefix that shows so many is to stay cached.
    """
    text = template.text(
        messages,
        variables=variables,
        tools=tools,
        generation_prompt=generation_prompt,
        continue_final=continue_final,
    )
    check(text)
    encoding = tokenizer.encoding(text)
    pins = []
    for count, seconds in pinned.items():
        end = _shown(template, messages[:count], text, variables, tools)
        pins.append((_tokens_within(encoding.offsets, end), seconds))
    prompt = _prompt_of(
        template, messages, text, encoding, variables, tools,
        generation_prompt=generation_prompt, continue_final=continue_final,
    )  # fmt: skip
    return replace(prompt, pins=tuple(pins)) if pins else prompt


def _shown(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    text: str,
    variables: dict[str, Any] | None,
    tools: list[dict[str, Any]] | None,
) -> int:
    """Return the number of characters of a prompt's `text` that show its first `messages`."""
    try:
        beginning = template.render(messages, generation_prompt=False, variables=variables, tools=tools)
    except TemplateRefused:
        return 0
    if text.startswith(beginning):
        return len(beginning)
    # The template shows the last message in another way than the same message before others.
    pairs = enumerate(zip(beginning, text, strict=False))
    return next((place for place, (one, other) in pairs if one != other), len(text))


def _tokens_within(offsets: Sequence[tuple[int, int]], end: int) -> int:
    """Return how many tokens, from the first one on, end at or before character `end`."""
    tokens = 0
    for begin, stop in offsets:
        if stop > end or begin >= end:
            break
        tokens += 1
    return tokens


def _prompt_of(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    text: str,
    encoding: Encoding,
    variables: dict[str, Any] | None,
    tools: list[dict[str, Any]] | None,
    *,
    generation_prompt: bool,
    continue_final: bool,
) -> Prompt:
    """Return the prompt of a rendered text, with its turn boundary and its opening.

    `encoding` is the encoding of `text`. The other parameters are those of `encoded_chat`.
    """
    if continue_final:
        return Prompt(encoding.ids, opening=_opening(template, messages, text, variables, tools))
    if not generation_prompt:
        return Prompt(encoding.ids)
    try:
        closed = template.render(messages, generation_prompt=False, variables=variables, tools=tools)
    except TemplateRefused:
        closed = ""
    if closed == text:
        if messages[-1]["role"] != "assistant":
            return Prompt(encoding.ids)
        return Prompt(encoding.ids, opening=_opening(template, messages, text, variables, tools))
    if not closed or not text.startswith(closed):
        # The beginning of the answer is at the end in this case too.
        return Prompt(encoding.ids, opening=text.rstrip().rpartition("\n")[2])
    boundary = _tokens_within(encoding.offsets, len(closed))
    return Prompt(encoding.ids, turn_boundary=boundary, opening=text[len(closed) :])


def _opening(
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    text: str,
    variables: dict[str, Any] | None,
    tools: list[dict[str, Any]] | None,
) -> str:
    """Return the beginning of the answer in a prompt that ends with a message of the assistant.

    This is all text that the template shows for the message, such as reasoning that is not closed.
    """
    try:
        before = template.render(messages[:-1], generation_prompt=False, variables=variables, tools=tools)
    except TemplateRefused:
        before = ""
    if before and text.startswith(before):
        return text[len(before) :]
    content: str = messages[-1]["content"].rstrip()
    head = text.rstrip().removesuffix(content)
    return head.rstrip().rpartition("\n")[2] + content


def chat_prompt(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    request: ChatCompletionRequest,
    check: Callable[[str], None] = lambda _: None,
) -> Prompt:
    """Return the whole prompt of a chat request. `check` gets its text before it is encoded.

    Raises TemplateRefused.
    """
    template = template.of(tools=bool(request.offered_tools))
    pinned = {
        count: message.pin_seconds for count, message in enumerate(request.messages, 1) if message.pin_seconds
    }
    return encoded_chat(
        template, tokenizer, template_messages(request), check=check, pinned=pinned, **_options(request)
    )


def chat_text(template: ChatTemplate, request: ChatCompletionRequest) -> str:
    """Return the text that `chat_prompt` encodes. Raises TemplateRefused."""
    template = template.of(tools=bool(request.offered_tools))
    return template.text(template_messages(request), **_options(request))


def _options(request: ChatCompletionRequest) -> dict[str, Any]:
    effort: dict[str, Any] = {} if request.effort is None else {"reasoning_effort": request.effort}
    if request.reasoning is not None and request.reasoning.enabled is not None:
        effort["enable_thinking"] = request.reasoning.enabled
    return {
        "variables": {**effort, **(request.chat_template_kwargs or {})},
        "tools": request.offered_tools or None,
        "generation_prompt": request.add_generation_prompt is not False,
        "continue_final": bool(request.continue_final_message),
    }


def template_messages(request: ChatCompletionRequest) -> list[dict[str, Any]]:
    """Return messages with content as one string, common roles only, and arguments of calls as objects."""
    return [_plain_message(message) or _message(message) for message in request.messages]


def _plain_message(message: ChatMessage) -> dict[str, Any] | None:
    """Return a message that has a role and a text only, as most have; None = it has more."""
    if message.model_fields_set != _PLAIN or not isinstance(message.content, str):
        return None
    return {"role": _COMMON_ROLES.get(message.role, message.role), "content": message.content}


def _message(chat_message: ChatMessage) -> dict[str, Any]:
    message = chat_message.model_dump(exclude_none=True, exclude={"cache_control"})
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part.get("text") or part.get("refusal", "") for part in content)
    role = _COMMON_ROLES.get(message["role"], message["role"])
    converted = {**message, "role": role, "content": content or ""}
    # Clients send reasoning back under the name that they read, and templates know one.
    if isinstance(thoughts := message.get("reasoning"), str) and "reasoning_content" not in message:
        converted["reasoning_content"] = thoughts
    if "tool_calls" in message:
        converted["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return converted


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object.

    Clients send arguments as the text that they received, while templates encode them or iterate over them.
    """
    custom = call.get("custom")
    if call.get("type") == "custom" and isinstance(custom, dict):
        # Templates only know functions, and the tool is shown as one.
        name, written = custom.get("name", ""), custom.get(INPUT, "")
        kept = {key: value for key, value in call.items() if key != "custom"}
        return {**kept, "type": "function", "function": {"name": name, "arguments": {INPUT: written}}}
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    written = function.get("arguments")
    if written is None or (isinstance(written, str) and written.strip() in ("", "null")):
        return {**call, "function": {**function, "arguments": {}}}
    if not isinstance(written, str):
        return call
    try:
        arguments = strict_json.parse_whole(written)
    except (ValueError, RecursionError):
        return call  # a model may have written invalid JSON, which is shown unchanged
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
