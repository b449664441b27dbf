"""Builds the answer of `POST /v1/chat/completions` from updates, complete or in chunks. Pure."""

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
from mamba_server.api.answers.answer_reader import AnswerReader, ParsedUpdate
from mamba_server.api.answers.responses import (
    ArgumentsBody,
    ArgumentsDeltaBody,
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
from mamba_server.api.answers.score_json import LongParts, join_pieces, let_go, prompt_scores
from mamba_server.api.answers.stream_frame import StreamFrame
from mamba_server.wire import TokenLogprobs
from mamba_text import strict_json
from mamba_text.call_parts import CallPart
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


class ChatResponseBuilder(StreamFrame):
    """Encodes the chunks of one chat's answer, or the whole answer."""

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
        """Prepare an answer without output. `readers` are the readers of the choices, one for each.

        `response_id`, `created` (seconds since 1970) and `model` are fields of the answer.
        """
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
        """Encode one update, in pieces if it is long; None if it brings nothing that can be sent.

        The first event of a choice has the role of the message.
        """
        events: list[bytes] = []
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs
        choice = self._choices[update.choice]
        parsed = choice.reader.read(update)
        shared_usage = (usage and self._with_reasoning(usage)) if with_usage else UNSET
        if update.first:
            opening = ChatChunkChoiceBody(update.choice, DeltaBody("assistant", content=""))
            events = self._event(opening, shared_usage)
        has_details = bool(update.token_ids) and self._sends_details
        if parsed.reasoning or parsed.text or parsed.parts or parsed.finish is not None or has_details:
            delta = self._delta(choice, parsed, has_details)
            body = ChatChunkChoiceBody(update.choice, delta, finish_reason=parsed.finish)
            body.logprobs = self._logprobs(update.logprobs)
            if self._request.return_token_ids:
                body.token_ids = update.token_ids
            events += self._event(body, shared_usage)
        return join_pieces(events)

    @property
    def _sends_details(self) -> bool:
        """Whether chunks have the tokens, or their log-probabilities, of text that is held back."""
        return bool(self._request.logprobs or self._request.return_token_ids)

    def _delta(self, choice: _ChatChoice, parsed: ParsedUpdate, has_details: bool) -> DeltaBody:
        """Build the message's new part; an empty text if it has nothing but details of tokens."""
        delta = DeltaBody()
        if parsed.reasoning:
            delta.reasoning_content = delta.reasoning = parsed.reasoning
        if parsed.text or (has_details and not parsed.parts and not parsed.reasoning):
            delta.content = parsed.text
        if bodies := [body for part in parsed.parts if (body := self._call_delta(choice, part)) is not None]:
            delta.tool_calls = bodies
        return delta

    def _call_delta(
        self, choice: _ChatChoice, part: CallPart
    ) -> ToolCallDeltaBody | ArgumentsDeltaBody | CustomCallDeltaBody | None:
        """Build the new part of a call; None = a part of a custom tool's call, which comes whole."""
        if part.name:
            choice.calls.append(ToolCall(part.name, ""))
        index, name = len(choice.calls) - 1, choice.calls[-1].name
        if name in self._customs:
            call = choice.calls[-1] = ToolCall(name, choice.calls[-1].arguments + part.arguments)
            return CustomCallDeltaBody(_call_id(), _custom(call), index=index) if part.last else None
        if part.name:
            return ToolCallDeltaBody(_call_id(), FunctionBody(name, part.arguments), index=index)
        return ArgumentsDeltaBody(index, ArgumentsBody(part.arguments)) if part.arguments else None

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """Encode the event after the last choice."""
        usage = self._with_reasoning(usage)
        return responses.event(
            ChatChunkBody(self._id, self._created, self._model, [], usage=usage, mambaserve=self.vendor)
        )

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        choice = self._choices[update.choice]
        parsed = choice.reader.read(update)
        choice.reasoning.append(parsed.reasoning)
        choice.text.append(parsed.text)
        choice.calls += parsed.calls
        choice.token_ids += update.token_ids
        choice.logprobs += update.logprobs or ()
        choice.finish_reason = parsed.finish
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs

    def weight(self, update: ChoiceUpdate) -> int:
        """Estimate how many log-probabilities are encoded with the update."""
        entries = len(update.prompt_logprobs or self._prompt_logprobs or ()) + len(update.logprobs or ())
        return entries * (1 + max(self._request.top_logprobs or 0, self._request.prompt_logprobs or 0))

    def seal(self, index: int) -> None:
        """Do nothing when a choice ends: `full` encodes all choices at once."""

    def full(self, usage: UsageBody) -> list[bytes]:
        """Encode the complete answer."""
        body = ChatBody(self._id, self._created, self._model, [], self._with_reasoning(usage))
        for index, choice in enumerate(self._choices):
            message = _message("".join(choice.reasoning), "".join(choice.text), choice.calls, self._customs)
            entry = ChatChoiceBody(index, message, self._logprobs(choice.logprobs), choice.finish_reason)
            if self._request.return_token_ids:
                entry.token_ids = choice.token_ids
            body.choices.append(entry)
        body.mambaserve = self.vendor
        parts = LongParts()
        body.prompt_logprobs, body.prompt_token_ids = self._about_prompt(parts)
        return parts.insert_parts(responses.encode(body))

    def _with_reasoning(self, usage: UsageBody) -> UsageBody:
        """Add the number of reasoning tokens, if reasoning is parsed."""
        counts = [choice.reader.reasoning_tokens for choice in self._choices]
        numbers = [count for count in counts if count is not None]
        if not numbers:
            return usage
        return replace(usage, completion_tokens_details=CompletionTokensDetailsBody(sum(numbers)))

    def _about_prompt(
        self, parts: LongParts
    ) -> tuple[responses.PromptLogprobs | Raw | UnsetType, list[int] | UnsetType]:
        """Return the prompt's log-probabilities and token ids; UNSET for what was not requested.

        They belong to the answer and not to a choice. The log-probabilities are freed here.
        """
        token_ids = self._prompt_token_ids if self._request.return_token_ids else UNSET
        if self._request.prompt_logprobs is None or self._prompt_logprobs is None:
            return UNSET, token_ids
        scores = prompt_scores(self._tokenizer, self._prompt_logprobs, parts)
        let_go(self._prompt_logprobs)
        return scores, token_ids

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobsBody | None:
        if not self._request.logprobs:
            return None
        return responses.chat_logprobs(self._tokenizer, entries or [])

    def _event(self, choice: ChatChunkChoiceBody, usage: UsageBody | UnsetType | None) -> list[bytes]:
        body = ChatChunkBody(self._id, self._created, self._model, [choice], usage=usage)
        if choice.finish_reason is not None:
            body.mambaserve = self.vendor
        if not self._begun:
            self._begun = True
            parts = LongParts()
            body.prompt_logprobs, body.prompt_token_ids = self._about_prompt(parts)
            return parts.insert_parts(responses.event(body))
        return [responses.event(body)]


def _message(reasoning: str, text: str, calls: list[ToolCall], customs: AbstractSet[str]) -> MessageBody:
    """Build the complete message. `customs`: names of the custom tools."""
    message = MessageBody(text or (None if calls or reasoning else ""))
    if reasoning:
        message.reasoning_content = message.reasoning = reasoning
    if calls:
        message.tool_calls = [
            CustomCallBody(_call_id(), _custom(call))
            if call.name in customs
            else ToolCallBody(_call_id(), FunctionBody(call.name, call.arguments))
            for call in calls
        ]
    return message


def _custom(call: ToolCall) -> CustomBody:
    """Build the call of a custom tool; arguments without an input field are the input as they stand."""
    try:
        arguments = strict_json.parse_whole(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    value = arguments.get(INPUT) if isinstance(arguments, dict) else None
    return CustomBody(call.name, value if isinstance(value, str) else call.arguments)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
