"""The form that an answer is to have, as a grammar for the engine; checked before it is sent there.

Used by the two generation endpoints. The engine checks it once more, with the model's tokens.
"""

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai import ChatCompletionRequest, GenerationRequest
from mamba_api.openai_fields import ResponseFormat, StructuredOutputs
from mamba_edge.errors import InvalidRequest
from mamba_server.api.followed_schema import followed
from mamba_server.api.forced_calls import (
    JSON_STYLE,
    calls_or_form,
    forced_calls,
    grammars_of,
    token_or_text,
)
from mamba_server.api.form_size import is_shorter_than
from mamba_server.api.grammar_words import in_our_words
from mamba_server.grammar_depth import check_depth
from mamba_text.prompt import TextProcessor
from mamba_text.reasoning import ReasoningFormat, ReasoningStart
from mamba_text.tokenizer import Tokenizer

MOST_CHARS = 64 * 1024
"""Of a schema, an expression or a grammar: one of 145 KB takes 38 ms to be made."""
GrammarCheck = Callable[[str], Awaitable[str]]


async def output_grammar(
    request: GenerationRequest, text: TextProcessor, check: GrammarCheck, opening: str = ""
) -> str:
    """Make llguidance's grammar; "" = the answer may be anything. `opening`: what a chat's prompt has of the
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
        if form is None or not (request.forced_tools or asked is not None):
            return ""
        if asked is not None and not request.forced_tools:
            once = request.parallel_tool_calls is False
            return await _checked(
                param,
                _written(asked),
                lambda: of_answer(calls_or_form(_of_form(asked), form, text.tokenizer, once=once)),
                check,
            )
        # Calls that have to be made leave no answer that could have the form.
        schemas = [tool.function.parameters for tool in request.forced_tools]
        return await _checked(
            "tools", schemas, lambda: of_answer(forced_calls(request, form, text.tokenizer)), check
        )
    if asked is None:
        return ""
    return await _checked(param, _written(asked), lambda: of_answer(_of_form(asked)), check)


async def _checked(param: str, written: Any, make: Callable[[], str], check: GrammarCheck) -> str:
    """`written`: what the client sent of it, whose size is looked at before anything is made of it."""
    try:
        if not is_shorter_than(written, MOST_CHARS):
            raise ValueError(f"has more than {MOST_CHARS} characters, which are the most")
        grammar = make()
        if len(grammar) > MOST_CHARS:
            raise ValueError(f"has {len(grammar)} characters as a grammar, and {MOST_CHARS} are the most")
        check_depth(grammar)
        if failure := await check(grammar):
            raise ValueError(in_our_words(failure))
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param, code="invalid_output_grammar") from error
    return grammar


def _of_form(asked: ResponseFormat | StructuredOutputs) -> str:
    if isinstance(asked, ResponseFormat):
        if asked.json_schema is not None:
            return _of_schema(asked.json_schema.schema_)
        return _of_schema({"type": "object", **(asked.schema_ or {})})
    if asked.json_ is not None:
        return _of_schema(asked.json_)
    if asked.json_object:
        return _of_schema({"type": "object"})
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


def _of_schema(schema: dict[str, Any] | str) -> str:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except RecursionError as error:
            raise ValueError("is nested too deeply") from error
        if not isinstance(schema, dict):
            raise ValueError("has to be an object")
    return str(LLMatcher.grammar_from_json_schema(followed(schema), defaults=JSON_STYLE))


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
