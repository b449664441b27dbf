"""The form that an answer must have, as a grammar for the engine. The grammar is checked before it is sent.

The endpoints that generate use it. The engine compiles the grammar once more before it follows it.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai import ChatCompletionRequest, GenerationRequest
from mamba_api.openai_fields import ResponseFormat, StructuredOutputs
from mamba_api.openai_tools import Tool
from mamba_edge.errors import InvalidRequest
from mamba_server.api.forms.followed_schema import FormLimits, enforceable_schema
from mamba_server.api.forms.forced_calls import (
    calls_or_form,
    forced_calls,
    grammars_of,
    token_or_text,
)
from mamba_server.api.forms.free_calls import can_be_followed, free_calls
from mamba_server.api.forms.grammar_words import OVERLAP, readable_failure
from mamba_server.grammar_depth import check_depth
from mamba_server.wire import ThoughtBudget
from mamba_text.prompt import TextProcessor
from mamba_text.reasoning import ReasoningFormat, ReasoningStart
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCallFormat

MAX_CHARS = 64 * 1024
"""Maximum length of a schema, an expression or a grammar: building one of 145 KB takes 38 ms."""
GrammarCheck = Callable[[str], Awaitable[str]]
"""Returns why a grammar cannot be followed; "" means that it can."""
FormSpec = ResponseFormat | StructuredOutputs


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form that the engine enforces on one answer, and what it leaves out of the requested form."""

    grammar: str = ""
    """Grammar of llguidance; "" = the answer is unrestricted."""
    left_out: tuple[str, ...] = ()
    """Keys of the requested form that the answer is not made to follow."""
    thoughts: ThoughtBudget | None = None
    """Limit on the thoughts before the answer."""


async def output_grammar(
    request: GenerationRequest, text: TextProcessor, check: GrammarCheck, opening: str = ""
) -> OutputForm:
    """Build the grammar of an answer and check that it can be followed.

    Raises InvalidRequest, and the errors of `check`.

    Args:
        request: the validated body. The model's template supports its tools, if it has some.
        text: tokenizer and chat template.
        check: checks a grammar.
        opening: the part of the answer with which a chat's prompt ends.
    """
    spec = request.structured_outputs or request.response_format
    if isinstance(spec, ResponseFormat) and spec.type == "text":
        spec = None
    if not isinstance(request, ChatCompletionRequest):
        return await _FormBuilder(request, text, check).form(spec)
    template = None if text.template is None else text.template.of(tools=bool(request.offered_tools))
    reasoning = None if template is None else template.reasoning
    builder = _FormBuilder(request, text, check, reasoning, opening)
    calls = None if template is None else template.tool_calls
    form = await builder.of_chat(request, spec, calls)
    if (tokens := request.thought_tokens) is not None and reasoning is not None:
        call_begin = calls.begin if calls is not None and request.offered_tools else None
        budget = _thought_budget(tokens, reasoning, opening, call_begin, text.tokenizer)
        form = replace(form, thoughts=budget)
    return form


class _FormBuilder:
    """Builds the form of one request's answers, with one method for each kind of tool calls."""

    def __init__(
        self,
        request: GenerationRequest,
        text: TextProcessor,
        check: GrammarCheck,
        reasoning: ReasoningFormat | None = None,
        opening: str = "",
    ) -> None:
        self._tokenizer = text.tokenizer
        self._check = check
        self._reasoning = reasoning
        self._opening = opening
        self._param = "response_format" if request.structured_outputs is None else "structured_outputs"

    async def of_chat(
        self, request: ChatCompletionRequest, spec: FormSpec | None, calls: ToolCallFormat | None
    ) -> OutputForm:
        """Build the form of an answer to a chat, whose calls the model writes in the format `calls`."""
        if not request.offered_tools:
            return await self.form(spec)
        if calls is None:
            return _unrestricted(request)
        if request.forced_tools:
            # An answer that consists of forced calls has no text that could have the form.
            return await self.forced_calls(request, calls)
        if spec is not None:
            return await self.calls_or_form(request, spec, calls)
        return await self.free_calls(request, calls)

    async def form(self, spec: FormSpec | None) -> OutputForm:
        """Build the form of an answer without tool calls."""
        if spec is None:
            return OutputForm()
        return await self._build_checked(
            self._param, _source(spec), lambda limits: _spec_grammar(spec, limits), strict=_is_strict(spec)
        )

    async def forced_calls(self, request: ChatCompletionRequest, calls: ToolCallFormat) -> OutputForm:
        """Build the form of an answer that consists of forced calls."""
        return await self._build_checked(
            "tools",
            [_tool_source(tool) for tool in request.forced_tools],
            lambda limits: forced_calls(request, calls, self._tokenizer, limits),
            strict=any(tool.strict for tool in request.forced_tools),
        )

    async def calls_or_form(
        self, request: ChatCompletionRequest, spec: FormSpec, calls: ToolCallFormat
    ) -> OutputForm:
        """Build the form of an answer that has the requested form or consists of unrestricted calls."""
        once = request.parallel_tool_calls is False
        form = await self._build_checked(
            self._param,
            _source(spec),
            lambda limits: calls_or_form(_spec_grammar(spec, limits), calls, self._tokenizer, once=once),
            strict=_is_strict(spec),
        )
        left_out = {*form.left_out, *_unrestricted(request).left_out}
        return OutputForm(form.grammar, tuple(sorted(left_out)))

    async def free_calls(self, request: ChatCompletionRequest, calls: ToolCallFormat) -> OutputForm:
        """Build the form of an unrestricted answer whose calls of custom tools follow their formats."""
        tools = [tool for tool in request.callable_tools if can_be_followed(tool, calls)]
        if not tools:
            return _unrestricted(request)
        form = await self._build_checked(
            "tools",
            [_tool_source(tool) for tool in tools],
            lambda limits: free_calls(tools, calls, self._tokenizer, limits),
            strict=False,
        )
        return OutputForm(form.grammar, _unrestricted(request, followed=tools).left_out)

    async def _build_checked(
        self, param: str, source: Any, build: Callable[[FormLimits], str], *, strict: bool
    ) -> OutputForm:
        """Build a form and check that it can be followed. Raises InvalidRequest for the field `param`.

        `source` is the client's schema or grammar, whose size is checked before a grammar is built from it.
        With `strict`, no key may be left out.
        """
        try:
            if not is_shorter_than(source, MAX_CHARS):
                raise ValueError(f"has more than {MAX_CHARS} characters, which is the limit")
            limits = FormLimits()
            grammar, failure = await self._build(build, limits)
            if OVERLAP in failure and not strict:
                limits = FormLimits(overlaps=True)
                grammar, failure = await self._build(build, limits)
            if failure:
                raise ValueError(failure)
        except ValueError as error:
            message = f"{param}: {readable_failure(str(error))}"
            raise InvalidRequest(message, param=param, code="invalid_output_grammar") from error
        return OutputForm(grammar, tuple(sorted(limits.left_out)))

    async def _build(self, build: Callable[[FormLimits], str], limits: FormLimits) -> tuple[str, str]:
        """Build a grammar and return it with the reason why it cannot be followed. Raises ValueError."""
        grammar = build(limits)
        if self._reasoning is not None:
            grammar = _after_reasoning(grammar, self._reasoning, self._opening, self._tokenizer)
        if len(grammar) > MAX_CHARS:
            raise ValueError(f"has {len(grammar)} characters as a grammar, and the limit is {MAX_CHARS}")
        check_depth(grammar)
        return grammar, await self._check(grammar)


def _unrestricted(request: ChatCompletionRequest, followed: Sequence[Tool] = ()) -> OutputForm:
    """Return the form of an unrestricted answer that follows the input formats of the tools `followed`."""
    tools = [tool for tool in request.callable_tools if tool not in followed]
    customs = [tool.custom for tool in tools if tool.custom is not None]
    has_formats = any(custom.grammar is not None for custom in customs)
    return OutputForm(left_out=("format",) if has_formats else ())


def is_shorter_than(value: Any, limit: int) -> bool:
    """Return whether a JSON value takes fewer than about `limit` characters, without encoding it.

    Values beyond the limit are not read.
    """
    chars = 0
    unread = [value]
    while unread and chars < limit:
        item = unread.pop()
        if isinstance(item, str):
            chars += len(item) + 2
        elif isinstance(item, dict):
            chars += 2 * len(item) + sum(map(len, item))
            unread += item.values()
        elif isinstance(item, list):
            chars += 2 * len(item)
            unread += item
        else:
            chars += 1
    return chars < limit


def _tool_source(tool: Tool) -> Any:
    grammar = None if tool.custom is None else tool.custom.grammar
    return tool.parameters if grammar is None else grammar.definition


def _is_strict(spec: FormSpec) -> bool:
    schema = spec.json_schema if isinstance(spec, ResponseFormat) else None
    return schema is not None and bool(schema.strict)


def _spec_grammar(spec: FormSpec, limits: FormLimits) -> str:
    if isinstance(spec, ResponseFormat):
        if spec.json_schema is not None:
            return _schema_grammar(spec.json_schema.schema_, limits, strict=_is_strict(spec))
        return _schema_grammar({"type": "object", **(spec.schema_ or {})}, limits)
    if spec.json_ is not None:
        return _schema_grammar(spec.json_, limits)
    if spec.json_object:
        return _schema_grammar({"type": "object"}, limits)
    if spec.regex is not None:
        return str(LLMatcher.grammar_from_regex(spec.regex))
    if spec.choice is not None:
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, spec.choice))))
    assert spec.grammar is not None
    return str(LLMatcher.grammar_from_lark(spec.grammar))


def _source(spec: FormSpec) -> Any:
    if isinstance(spec, ResponseFormat):
        return spec.schema_ if spec.json_schema is None else spec.json_schema.schema_
    return [spec.json_, spec.regex, spec.choice, spec.grammar]


def _schema_grammar(schema: dict[str, Any] | str, limits: FormLimits, *, strict: bool = False) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error
        if not isinstance(schema, dict):
            raise ValueError("must be an object")
    kept = enforceable_schema(schema, limits, strict=strict)
    return str(LLMatcher.grammar_from_json_schema(kept, defaults=limits.style))


def _after_reasoning(grammar: str, form: ReasoningFormat, opening: str, tokenizer: Tokenizer) -> str:
    """Return the grammar of an answer that may begin with reasoning, as far as its prompt allows."""
    start = ReasoningStart.of(form, opening)
    begin, end = (token_or_text(marker, tokenizer) for marker in form.markers)
    # A model without a special token for the marker does not begin to reason by itself, and an answer that
    # begins with a letter of the marker would be taken for reasoning.
    unlikely = start is ReasoningStart.UNSAID and not begin.startswith("<")
    if unlikely or start is ReasoningStart.CLOSED:
        return grammar
    # A model may spell a marker in letters although it has a special token; `ReasoningReader` reads both.
    reasoning = "(thoughts | thought end)" if end.startswith("<") else "thoughts"
    rules = [
        f"start: {reasoning} blank @answer"
        if start is ReasoningStart.OPEN
        else f"start: ({begin} {reasoning} blank)? @answer",
        f"thoughts[lazy]: /(?s:.*){re.escape(form.end).replace('/', chr(92) + '/')}/",
        "thought: /(?s:.*)/",
        f"end: {end}",
        "blank: /\\n{0,2}/",
    ]
    answer, *others = grammars_of(grammar)
    both = [{"lark_grammar": "\n".join(rules)}, {**answer, "name": "answer"}]
    return json.dumps({"grammars": both + others})


def _thought_budget(
    tokens: int, form: ReasoningFormat, opening: str, call_begin: str | None, tokenizer: Tokenizer
) -> ThoughtBudget | None:
    """Return the limit for one answer; None = the prompt has ended the thoughts already.

    Args:
        tokens: most tokens of the thoughts.
        form: markers of the model's thoughts.
        opening: the part of the answer with which the prompt ends.
        call_begin: marker of a call, which ends thoughts, too; None = the model may not call.
        tokenizer: the model's tokenizer.
    """
    start = ReasoningStart.of(form, opening)
    if start is ReasoningStart.CLOSED:
        return None
    begin = form.begin if start is ReasoningStart.UNSAID else ""
    ends = (form.end,) if call_begin is None else (form.end, call_begin)
    # Models are taught the marker on a line of its own, with a blank line between it and the answer.
    closing = tokenizer.encoding(f"\n{form.end}\n\n").ids
    return ThoughtBudget(tokens, begin, ends, tuple(closing))
