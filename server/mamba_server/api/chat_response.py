"""The answer of `POST /v1/chat/completions`, as a whole or in chunks, out of a generation's updates. Pure."""

import uuid
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from mamba_api.openai import ChatCompletionRequest
from mamba_server.api import responses
from mamba_server.api.active_request import ChoiceUpdate
from mamba_server.api.responses import (
    ChatBody,
    ChatChoiceBody,
    ChatChunkBody,
    ChatChunkChoiceBody,
    ChatFinish,
    ChatLogprobsBody,
    DeltaBody,
    FunctionBody,
    MessageBody,
    ToolCallBody,
    ToolCallDeltaBody,
    UsageBody,
)
from mamba_server.wire import TokenLogprobs
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ParsedOutput, ToolCall, ToolCallFormat, ToolCallReader


@dataclass(slots=True)
class _ChatChoice:
    reader: ToolCallReader | None
    """Where the model was offered tools."""
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: ChatFinish | None = None

    def read(self, update: ChoiceUpdate) -> tuple[ParsedOutput, ChatFinish | None]:
        """What the update's text is, and how the choice ends."""
        if self.reader is None:
            return ParsedOutput(update.text), update.finish_reason
        read = self.reader.feed(update.text, last=update.finish_reason is not None)
        called = self.reader.calls and update.finish_reason == "stop"
        return read, "tool_calls" if called else update.finish_reason


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
        tool_calls: ToolCallFormat | None = None,
    ) -> None:
        """`tool_calls`: how the model writes calls, where it was offered tools."""
        self._request = request
        self._tokenizer = tokenizer
        self._prompt_token_ids = prompt_token_ids
        self._id, self._created, self._model = response_id, created, model
        most = 1 if request.parallel_tool_calls is False else None
        self._choices = [
            _ChatChoice(None if tool_calls is None else ToolCallReader(tool_calls, most))
            for _ in range(request.n or 1)
        ]
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None
        self._begun = False

    def chunk(self, update: ChoiceUpdate, usage: UsageBody | None, *, with_usage: bool) -> bytes | None:
        """The events of one update; None when it shows nothing new. A choice's first one tells the role."""
        shown = usage if with_usage else UNSET
        events = b""
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs
        if update.first:
            events = self._event(ChatChunkChoiceBody(update.choice, DeltaBody("assistant", "")), shown)
        known = self._choices[update.choice]
        read, finish = known.read(update)
        more = bool(update.token_ids) and bool(self._request.logprobs or self._request.return_token_ids)
        if read.text or read.calls or finish is not None or more:
            delta = DeltaBody()
            if read.text or (more and not read.calls):
                delta.content = read.text
            if read.calls:
                first = len(known.calls)
                known.calls += read.calls
                delta.tool_calls = [
                    ToolCallDeltaBody(_call_id(), FunctionBody(call.name, call.arguments), index=index)
                    for index, call in enumerate(read.calls, first)
                ]
            choice = ChatChunkChoiceBody(update.choice, delta, finish_reason=finish)
            choice.logprobs = self._logprobs(update.logprobs)
            if self._request.return_token_ids:
                choice.token_ids = update.token_ids
            events += self._event(choice, shown)
        return events or None

    def usage_chunk(self, usage: UsageBody) -> bytes:
        """The event after the last choice."""
        return responses.event(ChatChunkBody(self._id, self._created, self._model, [], usage=usage))

    def collect(self, update: ChoiceUpdate) -> None:
        """Keep an update for `full`."""
        choice = self._choices[update.choice]
        read, finish = choice.read(update)
        choice.text.append(read.text)
        choice.calls += read.calls
        choice.token_ids += update.token_ids
        choice.logprobs += update.logprobs or ()
        choice.finish_reason = finish
        if update.prompt_logprobs is not None:
            self._prompt_logprobs = update.prompt_logprobs

    def full(self, usage: UsageBody) -> bytes:
        """The JSON of the complete answer."""
        body = ChatBody(self._id, self._created, self._model, [], usage)
        for index, choice in enumerate(self._choices):
            message = _message("".join(choice.text), choice.calls)
            shown = ChatChoiceBody(index, message, self._logprobs(choice.logprobs), choice.finish_reason)
            if self._request.return_token_ids:
                shown.token_ids = choice.token_ids
            body.choices.append(shown)
        body.prompt_logprobs, body.prompt_token_ids = self._about_prompt()
        return responses.encode(body)

    def _about_prompt(self) -> tuple[responses.PromptLogprobs | UnsetType, list[int] | UnsetType]:
        token_ids = self._prompt_token_ids if self._request.return_token_ids else UNSET
        if self._request.prompt_logprobs is None or self._prompt_logprobs is None:
            return UNSET, token_ids
        return responses.prompt_logprobs(self._tokenizer, self._prompt_logprobs), token_ids

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> ChatLogprobsBody | None:
        if not self._request.logprobs:
            return None
        return responses.chat_logprobs(self._tokenizer, entries or [])

    def _event(self, choice: ChatChunkChoiceBody, usage: UsageBody | UnsetType | None) -> bytes:
        body = ChatChunkBody(self._id, self._created, self._model, [choice], usage=usage)
        if not self._begun:
            self._begun = True
            body.prompt_logprobs, body.prompt_token_ids = self._about_prompt()
        return responses.event(body)


def _message(text: str, calls: list[ToolCall]) -> MessageBody:
    if not calls:
        return MessageBody(text)
    made = [ToolCallBody(_call_id(), FunctionBody(call.name, call.arguments)) for call in calls]
    return MessageBody(text or None, tool_calls=made)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
