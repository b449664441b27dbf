"""The answer of `POST /v1/chat/completions`, as a whole or in chunks, out of a generation's updates. Pure."""

import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from mamba_api.openai import ChatCompletionRequest
from mamba_api.openai_tools import INPUT
from mamba_server.api.answers import responses
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.answer_reader import AnswerReader
from mamba_server.api.answers.responses import (
    ChatBody,
    ChatChoiceBody,
    ChatChunkBody,
    ChatChunkChoiceBody,
    ChatFinish,
    ChatLogprobsBody,
    CompletionTokensDetailsBody,
    CustomBody,
    CustomCallBody,
    CustomCallDeltaBody,
    DeltaBody,
    FunctionBody,
    MessageBody,
    ToolCallBody,
    ToolCallDeltaBody,
    UsageBody,
)
from mamba_server.api.answers.score_json import LongParts, let_go, prompt_scores, together
from mamba_server.wire import TokenLogprobs
from mamba_text import strict_json
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCall


@dataclass(slots=True)
class _ChatChoice:
    reader: AnswerReader
    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: ChatFinish | None = None


class ChatResponseBuilder:
    """Builds chunks and the whole."""

    def __init__(
        self,
        request: ChatCompletionRequest,
        tokenizer: Tokenizer,
        prompt_token_ids: list[int],
        *,
        response_id: str,
        created: int,
        model: str,
        readers: Sequence[AnswerReader],
    ) -> None:
        """`readers`: one for each choice."""
        self._request = request
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._id, self._created, self._model = response_id, created, model
        self._customs = {tool.name for tool in request.callable_tools if tool.custom is not None}
        self._choices = [_ChatChoice(reader) for reader in readers]
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._begun = False

    def chunk(
        self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool
    ) -> bytes | list[bytes] | None:
        """The events of one update, in pieces where they are long; None when it shows nothing new. A choice's
        first event tells the role."""
        events: list[bytes] = []
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs
        known = self._choices[update.choice]
        read = known.reader.read(update)
        shown = (usage and self._counted(usage)) if with_usage else UNSET
        if update.first:
            begun = ChatChunkChoiceBody(update.choice, DeltaBody("assistant", content=""))
            events = self._event(begun, shown)
        more = bool(update.token_ids) and bool(self._request.logprobs or self._request.return_token_ids)
        if read.reasoning or read.text or read.calls or read.finish is not None or more:
            delta = DeltaBody()
            if read.reasoning:
                delta.reasoning_content = read.reasoning
            if read.text or (more and not read.calls and not read.reasoning):
                delta.content = read.text
            if read.calls:
                first = len(known.calls)
                known.calls += read.calls
                delta.tool_calls = [
                    CustomCallDeltaBody(_call_id(), _custom(call), index=index)
                    if call.name in self._customs
                    else ToolCallDeltaBody(_call_id(), FunctionBody(call.name, call.arguments), index=index)
                    for index, call in enumerate(read.calls, first)
                ]
            choice = ChatChunkChoiceBody(update.choice, delta, finish_reason=read.finish)
            choice.logprobs = self._logprobs(update.logprobs)
            if self._request.return_token_ids:
                choice.token_ids = update.token_ids
            events += self._event(choice, shown)
        return together(events)

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """The event after the last choice."""
        counted = self._counted(usage)
        return responses.event(ChatChunkBody(self._id, self._created, self._model, [], usage=counted))

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        choice = self._choices[update.choice]
        read = choice.reader.read(update)
        choice.reasoning.append(read.reasoning)
        choice.text.append(read.text)
        choice.calls += read.calls
        choice.token_ids += update.token_ids
        choice.logprobs += update.logprobs or ()
        choice.finish_reason = read.finish
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs

    def weight(self, update: ChoiceUpdate) -> int:
        """About how many entries of log-probabilities are encoded with the update."""
        entries = len(update.prompt_logprobs or self._prompt_logprobs or ()) + len(update.logprobs or ())
        return entries * (1 + max(self._request.top_logprobs or 0, self._request.prompt_logprobs or 0))

    def seal(self, index: int) -> None:
        """The choice is over; all are encoded at once."""

    def full(self, usage: UsageBody) -> list[bytes]:
        """The JSON of the complete answer."""
        body = ChatBody(self._id, self._created, self._model, [], self._counted(usage))
        for index, choice in enumerate(self._choices):
            message = _message("".join(choice.reasoning), "".join(choice.text), choice.calls, self._customs)
            shown = ChatChoiceBody(index, message, self._logprobs(choice.logprobs), choice.finish_reason)
            if self._request.return_token_ids:
                shown.token_ids = choice.token_ids
            body.choices.append(shown)
        parts = LongParts()
        body.prompt_logprobs, body.prompt_token_ids = self._about_prompt(parts)
        return parts.in_place(responses.encode(body))

    def _counted(self, usage: UsageBody) -> UsageBody:
        """With the tokens of thoughts, where these are told apart."""
        counts = [choice.reader.reasoning_tokens for choice in self._choices]
        known = [count for count in counts if count is not None]
        if not known:
            return usage
        return replace(usage, completion_tokens_details=CompletionTokensDetailsBody(sum(known)))

    def _about_prompt(
        self, parts: LongParts
    ) -> tuple[responses.PromptLogprobs | Raw | UnsetType, list[int] | UnsetType]:
        """What the answer says of its prompt, once."""
        token_ids = self._prompt_token_ids if self._request.return_token_ids else UNSET
        if self._request.prompt_logprobs is None or self._prompt_logprobs is None:
            return UNSET, token_ids
        shown = prompt_scores(self._tokenizer, self._prompt_logprobs, parts)
        let_go(self._prompt_logprobs)
        return shown, token_ids

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobsBody | None:
        if not self._request.logprobs:
            return None
        return responses.chat_logprobs(self._tokenizer, entries or [])

    def _event(self, choice: ChatChunkChoiceBody, usage: UsageBody | UnsetType | None) -> list[bytes]:
        body = ChatChunkBody(self._id, self._created, self._model, [choice], usage=usage)
        if not self._begun:
            self._begun = True
            parts = LongParts()
            body.prompt_logprobs, body.prompt_token_ids = self._about_prompt(parts)
            return parts.in_place(responses.event(body))
        return [responses.event(body)]


def _message(reasoning: str, text: str, calls: list[ToolCall], customs: AbstractSet[str]) -> MessageBody:
    """The whole message. `customs`: names of the custom tools."""
    message = MessageBody(text or (None if calls or reasoning else ""))
    if reasoning:
        message.reasoning_content = reasoning
    if calls:
        message.tool_calls = [
            CustomCallBody(_call_id(), _custom(each))
            if each.name in customs
            else ToolCallBody(_call_id(), FunctionBody(each.name, each.arguments))
            for each in calls
        ]
    return message


def _custom(call: ToolCall) -> CustomBody:
    """The call of a custom tool; arguments that are no input are the input as they were written."""
    try:
        arguments = strict_json.parse_whole(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    read = arguments.get(INPUT) if isinstance(arguments, dict) else None
    return CustomBody(call.name, read if isinstance(read, str) else call.arguments)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
