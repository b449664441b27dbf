"""`AnswerReader`: parts what the model writes as one choice of a chat into thoughts, text and calls of tools.

Used by the chat endpoint. How each is marked the model's chat template says.
"""

from dataclasses import dataclass
from functools import partial

from mamba_api.openai import ChatCompletionRequest
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.responses import ChatFinish
from mamba_text.chat_template import ChatTemplate
from mamba_text.prompt import Prompt, TextProcessor
from mamba_text.reasoning import ReasoningFormat, ReasoningReader, ReasoningStart
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCall, ToolCallFormat, ToolCallReader


@dataclass(frozen=True, slots=True)
class ParsedUpdate:
    """What is new of a choice."""

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...]
    finish: ChatFinish | None
    """How the choice ends; `tool_calls` where it ends by itself after calls."""


class AnswerReader:
    """Of one choice. `reasoning`, `tool_calls`: where there may be some and they are told apart."""

    def __init__(
        self, tokenizer: Tokenizer, reasoning: ReasoningReader | None, tool_calls: ToolCallReader | None
    ) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._tool_calls = tool_calls

    @property
    def reasoning_tokens(self) -> int | None:
        """Tokens of the thoughts so far; None = they are not told apart."""
        return None if self._reasoning is None else self._reasoning.tokens

    def read(self, update: ChoiceUpdate) -> ParsedUpdate:
        """The next update of the choice."""
        finish = update.finish_reason
        last = finish is not None
        reasoning, text = "", update.text
        if self._reasoning is not None:
            tokens = (self._tokenizer.piece(token_id).text for token_id in update.token_ids)
            parsed = self._reasoning.feed(text, tokens, last=last)
            reasoning, text = parsed.reasoning, parsed.answer
        if self._tool_calls is None:
            return ParsedUpdate(reasoning, text, (), finish)
        output = self._tool_calls.feed(text, last=last)
        called = self._tool_calls.calls and finish == "stop"
        return ParsedUpdate(reasoning, output.text, output.calls, "tool_calls" if called else finish)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the answers to one chat are to be read."""

    reasoning: ReasoningFormat | None
    tool_calls: ToolCallFormat | None
    markers: tuple[str, ...] = ()
    """The texts by which it is read, here or by the client; a tokenizer may have them as special tokens."""

    @classmethod
    def of(cls, request: ChatCompletionRequest, template: ChatTemplate | None) -> "AnswerFormat":
        """Thoughts are read unless the request wants them in the text, calls where it offers tools."""
        if template is None:
            return cls(None, None)
        template = template.of(tools=bool(request.offered_tools))
        reasoning = template.reasoning
        tool_calls = template.tool_calls if request.offered_tools else None
        markers = [*(reasoning.markers if reasoning else ()), *(tool_calls.markers if tool_calls else ())]
        separate = request.separate_reasoning is not False
        return cls(reasoning if separate else None, tool_calls, tuple(markers))

    def readers(
        self, request: ChatCompletionRequest, text: TextProcessor, prompt: Prompt
    ) -> list[AnswerReader]:
        """One for each choice."""
        most = 1 if request.parallel_tool_calls is False else None
        parameters = {tool.name: tool.parameters for tool in request.callable_tools}

        form = self.tool_calls
        offered = None
        if form is not None:
            offered = partial(ToolCallReader, form, None, parameters, offered_alone=True)

        def reader() -> AnswerReader:
            thoughts = calls = None
            if self.reasoning is not None:
                start = ReasoningStart.of(self.reasoning, prompt.opening)
                thoughts = ReasoningReader(self.reasoning, start, offered)
            if self.tool_calls is not None:
                alone = request.has_allowed_tools
                calls = ToolCallReader(self.tool_calls, most, parameters, offered_alone=alone)
            return AnswerReader(text.tokenizer, thoughts, calls)

        return [reader() for _ in range(request.n or 1)]
