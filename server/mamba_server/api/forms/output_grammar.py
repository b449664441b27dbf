"""The form that an answer is to have, as a grammar for the engine; checked before it is sent there.

Used by the two generation endpoints. The engine checks it once more, with the model's tokens.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai import ChatCompletionRequest, GenerationRequest
from mamba_api.openai_fields import ResponseFormat, StructuredOutputs
from mamba_api.openai_tools import Tool
from mamba_edge.errors import InvalidRequest
from mamba_server.api.forms.followed_schema import FormLimits, followed
from mamba_server.api.forms.forced_calls import (
    calls_or_form,
    forced_calls,
    grammars_of,
    token_or_text,
)
from mamba_server.api.forms.form_size import is_shorter_than
from mamba_server.api.forms.free_calls import can_be_followed, free_calls
from mamba_server.api.forms.grammar_words import OVERLAP, in_our_words
from mamba_server.grammar_depth import check_depth
from mamba_text.prompt import TextProcessor
from mamba_text.reasoning import ReasoningFormat, ReasoningStart
from mamba_text.tokenizer import Tokenizer

MOST_CHARS = 64 * 1024
"""Of a schema, an expression or a grammar: one of 145 KB takes 38 ms to be made."""
GrammarCheck = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class OutputForm:
    """The form of one answer."""

    grammar: str = ""
    """llguidance's; "" = the answer may be anything."""
    left_out: tuple[str, ...] = ()
    """Keys of what was asked for that the answer is not made to follow."""


async def output_grammar(
    request: GenerationRequest, text: TextProcessor, check: GrammarCheck, opening: str = ""
) -> OutputForm:
    """Make the grammar of an answer. `opening`: what a chat's prompt has of the
    answer; `check`: says why a grammar cannot be followed, "" = it can. Tools, if there are any, are such as
    the model's template takes. Raises InvalidRequest, and what `check` does."""
    reasoning = template = None
    if isinstance(request, ChatCompletionRequest) and text.template is not None:
        template = text.template.of(tools=bool(request.offered_tools))
        reasoning = template.reasoning

    def of_answer(grammar: str) -> str:
        if reasoning is None:
            return grammar
        return _behind_thoughts(grammar, reasoning, opening, text.tokenizer)

    asked = request.structured_outputs or request.response_format
    if isinstance(asked, ResponseFormat) and asked.type == "text":
        asked = None
    param = "response_format" if request.structured_outputs is None else "structured_outputs"
    if isinstance(request, ChatCompletionRequest) and request.offered_tools:
        form = template.tool_calls if template is not None else None
        if form is None:
            return _of_free_calls(request)
        if not (request.forced_tools or asked is not None):
            tools = [tool for tool in request.callable_tools if can_be_followed(tool, form)]
            if not tools:
                return _of_free_calls(request)
            made = await _checked(
                "tools",
                [_written_of(tool) for tool in tools],
                lambda limits: of_answer(free_calls(tools, form, text.tokenizer, limits)),
                check,
                strict=False,
            )
            return OutputForm(made.grammar, _of_free_calls(request, followed=tools).left_out)
        if asked is not None and not request.forced_tools:
            once = request.parallel_tool_calls is False
            made = await _checked(
                param,
                _written(asked),
                lambda limits: of_answer(
                    calls_or_form(_of_form(asked, limits), form, text.tokenizer, once=once)
                ),
                check,
                strict=_is_strict(asked),
            )
            left_out = {*made.left_out, *_of_free_calls(request).left_out}
            return OutputForm(made.grammar, tuple(sorted(left_out)))
        # Calls that have to be made leave no answer that could have the form.
        schemas = [_written_of(tool) for tool in request.forced_tools]
        return await _checked(
            "tools",
            schemas,
            lambda limits: of_answer(forced_calls(request, form, text.tokenizer, limits)),
            check,
            strict=any(tool.strict for tool in request.forced_tools),
        )
    if asked is None:
        return OutputForm()
    return await _checked(
        param,
        _written(asked),
        lambda limits: of_answer(_of_form(asked, limits)),
        check,
        strict=_is_strict(asked),
    )


def _of_free_calls(request: ChatCompletionRequest, followed: Sequence[Tool] = ()) -> OutputForm:
    """The form of an answer that may be anything, calls included: of the custom tools, those that are
    `followed` alone have inputs of their formats."""
    tools = [tool for tool in request.callable_tools if tool not in followed]
    customs = [tool.custom for tool in tools if tool.custom is not None]
    return OutputForm(left_out=("format",) if any(each.grammar is not None for each in customs) else ())


async def _checked(
    param: str,
    written: Any,
    make: Callable[[FormLimits], str],
    check: GrammarCheck,
    *,
    strict: bool,
) -> OutputForm:
    """The form, of which the engine can follow all. `written`: what the client sent of it, whose size is
    looked at before anything is made of it; `strict`: nothing of it may be left out."""
    try:
        if not is_shorter_than(written, MOST_CHARS):
            raise ValueError(f"has more than {MOST_CHARS} characters, which are the most")
        limits = FormLimits()
        grammar, failure = await _tried(make, limits, check)
        if OVERLAP in failure and not strict:
            limits = FormLimits(overlaps=True)
            grammar, failure = await _tried(make, limits, check)
        if failure:
            raise ValueError(failure)
    except ValueError as error:
        said = f"{param}: {in_our_words(str(error))}"
        raise InvalidRequest(said, param=param, code="invalid_output_grammar") from error
    return OutputForm(grammar, tuple(sorted(limits.left_out)))


async def _tried(
    make: Callable[[FormLimits], str], limits: FormLimits, check: GrammarCheck
) -> tuple[str, str]:
    """The grammar within the limits, and why it cannot be followed, "" = it can. Raises ValueError."""
    grammar = make(limits)
    if len(grammar) > MOST_CHARS:
        raise ValueError(f"has {len(grammar)} characters as a grammar, and {MOST_CHARS} are the most")
    check_depth(grammar)
    return grammar, await check(grammar)


def _written_of(tool: Tool) -> Any:
    grammar = None if tool.custom is None else tool.custom.grammar
    return tool.parameters if grammar is None else grammar.definition


def _is_strict(asked: ResponseFormat | StructuredOutputs) -> bool:
    schema = asked.json_schema if isinstance(asked, ResponseFormat) else None
    return schema is not None and bool(schema.strict)


def _of_form(asked: ResponseFormat | StructuredOutputs, limits: FormLimits) -> str:
    if isinstance(asked, ResponseFormat):
        if asked.json_schema is not None:
            return _of_schema(asked.json_schema.schema_, limits, strict=_is_strict(asked))
        return _of_schema({"type": "object", **(asked.schema_ or {})}, limits)
    if asked.json_ is not None:
        return _of_schema(asked.json_, limits)
    if asked.json_object:
        return _of_schema({"type": "object"}, limits)
    if asked.regex is not None:
        return str(LLMatcher.grammar_from_regex(asked.regex))
    if asked.choice is not None:
        return str(LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, asked.choice))))
    assert asked.grammar is not None
    return str(LLMatcher.grammar_from_lark(asked.grammar))


def _written(asked: ResponseFormat | StructuredOutputs) -> Any:
    if isinstance(asked, ResponseFormat):
        return asked.schema_ if asked.json_schema is None else asked.json_schema.schema_
    return [asked.json_, asked.regex, asked.choice, asked.grammar]


def _of_schema(schema: dict[str, Any] | str, limits: FormLimits, *, strict: bool = False) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error
        if not isinstance(schema, dict):
            raise ValueError("has to be an object")
    kept = followed(schema, limits, strict=strict)
    return str(LLMatcher.grammar_from_json_schema(kept, defaults=limits.style))


def _behind_thoughts(grammar: str, form: ReasoningFormat, opening: str, tokenizer: Tokenizer) -> str:
    """The grammar, before which the model may think as its prompt says."""
    start = ReasoningStart.of(form, opening)
    begin, end = (token_or_text(marker, tokenizer) for marker in form.markers)
    # A model without a token for it does not think by itself; one of its letters would be its beginning.
    unsaid = start is ReasoningStart.UNSAID and not begin.startswith("<")
    if unsaid or start is ReasoningStart.CLOSED:
        return grammar
    # A marker that is a token by itself may be spelt out all the same; what reads the answer takes it so.
    thoughts = "(thoughts | thought end)" if end.startswith("<") else "thoughts"
    rules = [
        f"start: {thoughts} blank @answer"
        if start is ReasoningStart.OPEN
        else f"start: ({begin} {thoughts} blank)? @answer",
        f"thoughts[lazy]: /(?s:.*){re.escape(form.end).replace('/', chr(92) + '/')}/",
        "thought: /(?s:.*)/",
        f"end: {end}",
        "blank: /\\n{0,2}/",
    ]
    answer, *others = grammars_of(grammar)
    both = [{"lark_grammar": "\n".join(rules)}, {**answer, "name": "answer"}]
    return json.dumps({"grammars": both + others})
