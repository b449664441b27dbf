"""`AnswerReader`: divides what the model writes as one choice of a chat into reasoning, text and tool calls.

The chat endpoint uses it. The model's chat template says how each part is marked.
"""

from dataclasses import dataclass
from functools import partial

from mamba_api.openai import ChatCompletionRequest
from mamba_server.api.answers.active_request import ChoiceUpdate
from mamba_server.api.answers.responses import ChatFinish
from mamba_text.call_parts import CallPart
from mamba_text.chat_template import ChatTemplate
from mamba_text.prompt import Prompt, TextProcessor
from mamba_text.reasoning import ReasoningFormat, ReasoningReader, ReasoningStart
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCall, ToolCallFormat, ToolCallReader


@dataclass(frozen=True, slots=True)
class ParsedUpdate:
    """Holds what one choice has gained, divided into reasoning, text and calls."""

    reasoning: str
    text: str
    calls: tuple[ToolCall, ...]
    """Calls that are complete."""
    parts: tuple[CallPart, ...]
    """Calls in parts, as they are written."""
    finish: ChatFinish | None
    """Reason for which the choice ends; `tool_calls` if it ends by itself after tool calls."""


class AnswerReader:
    """Divides the output of one choice into reasoning, text and tool calls.

    `reasoning` and `tool_calls` are the parsers of these parts; None if such parts stay in the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, reasoning: ReasoningReader | None, tool_calls: ToolCallReader | None
    ) -> None:
        self._tokenizer = tokenizer
        self._reasoning = reasoning
        self._tool_calls = tool_calls

    @property
    def reasoning_tokens(self) -> int | None:
        """Number of reasoning tokens so far; None = reasoning stays in the text."""
        return None if self._reasoning is None else self._reasoning.tokens

    def read(self, update: ChoiceUpdate) -> ParsedUpdate:
        """Divide the next update of the choice."""
        finish = update.finish_reason
        last = finish is not None
        reasoning, text = "", update.text
        if self._reasoning is not None:
            tokens = (self._tokenizer.piece(token_id).text for token_id in update.token_ids)
            parsed = self._reasoning.feed(text, tokens, last=last)
            reasoning, text = parsed.reasoning, parsed.answer
        if self._tool_calls is None:
            return ParsedUpdate(reasoning, text, (), (), finish)
        output = self._tool_calls.feed(text, last=last)
        called = self._tool_calls.calls and finish == "stop"
        reason: ChatFinish | None = "tool_calls" if called else finish
        return ParsedUpdate(reasoning, output.text, output.calls, output.parts, reason)


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Says how the answers to one chat are divided into reasoning, text and calls."""

    reasoning: ReasoningFormat | None
    tool_calls: ToolCallFormat | None
    markers: tuple[str, ...] = ()
    """Texts that mark the parts, for us or for a client that parses the text; some may be special tokens."""

    @classmethod
    def of(cls, request: ChatCompletionRequest, template: ChatTemplate | None) -> "AnswerFormat":
        """Return the format for one request.

        Reasoning is parsed unless the request leaves it in the text, tool calls if the request offers tools.
        """
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
        """Build one reader for each choice."""
        max_calls = 1 if request.parallel_tool_calls is False else None
        parameters = {tool.name: tool.parameters for tool in request.callable_tools}

        form = self.tool_calls
        offered = None
        if form is not None:
            offered = partial(ToolCallReader, form, None, parameters, offered_alone=True)

        def reader() -> AnswerReader:
            reasoning = calls = None
            if self.reasoning is not None:
                start = ReasoningStart.of(self.reasoning, prompt.opening)
                reasoning = ReasoningReader(self.reasoning, start, offered)
            if self.tool_calls is not None:
                alone = request.has_allowed_tools
                calls = ToolCallReader(
                    self.tool_calls, max_calls, parameters, offered_alone=alone, streams=bool(request.stream)
                )
            return AnswerReader(text.tokenizer, reasoning, calls)

        return [reader() for _ in range(request.n or 1)]
