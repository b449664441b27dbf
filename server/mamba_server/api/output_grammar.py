"""The form that an answer is to have, as a grammar for the engine; checked before it is sent there.

Used by the two generation endpoints. The engine checks it once more, with the model's tokens.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from mamba_api.openai import ChatCompletionRequest, GenerationRequest
from mamba_api.openai_fields import NamedTool, ResponseFormat, StructuredOutputs, Tool
from mamba_edge.errors import InvalidRequest
from mamba_server.grammar_limits import LIMITS
from mamba_text.prompt import TextProcessor
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCallFormat

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_CHARS = 64 * 1024
"""Of a schema, an expression or a grammar: one of 145 KB takes 38 ms to be made."""
JSON_STYLE: "JsonCompileOptions" = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""White space of JSON has one place: a model that may add more of it might add it for ever."""


async def output_grammar(request: GenerationRequest, text: TextProcessor) -> str:
    """llguidance's grammar; "" = the answer may be anything. Tools, if there are any, are such as the model's
    template takes. Raises InvalidRequest."""
    asked = request.structured_outputs or request.response_format
    if isinstance(asked, ResponseFormat) and asked.type == "text":
        asked = None
    param = "response_format" if request.structured_outputs is None else "structured_outputs"
    if isinstance(request, ChatCompletionRequest) and request.offered_tools:
        if asked is not None:
            raise InvalidRequest(
                f"{param}: the model could call no tool; leave tools out, or send 'tool_choice': 'none'",
                param=param,
            )
        form = text.template.tool_calls if text.template is not None else None
        if not request.forced_tools or form is None:
            return ""
        return await _checked("tools", lambda: _forced(request, form, text.tokenizer))
    if asked is None:
        return ""
    return await _checked(param, lambda: _of_form(asked))


async def _checked(param: str, make: Callable[[], str]) -> str:
    try:
        grammar = make()
        if len(grammar) > MOST_CHARS:
            raise ValueError(f"has {len(grammar)} characters as a grammar, and {MOST_CHARS} are the most")
        # It lets go of the interpreter, and may take some milliseconds.
        failure = await asyncio.to_thread(partial(LLMatcher.validate_grammar, grammar, limits=LIMITS))
        if failure:
            raise ValueError(failure)
    except ValueError as error:
        raise InvalidRequest(f"{param}: {error}", param=param, code="invalid_output_grammar") from error
    return grammar


def _of_form(asked: ResponseFormat | StructuredOutputs) -> str:
    if isinstance(asked, ResponseFormat):
        return _of_schema(asked.json_schema.schema_ if asked.json_schema is not None else {"type": "object"})
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


def _of_schema(schema: dict[str, Any] | str) -> str:
    return str(LLMatcher.grammar_from_json_schema(schema, defaults=JSON_STYLE))


def _forced(request: ChatCompletionRequest, form: ToolCallFormat, tokenizer: Tokenizer) -> str:
    """Calls of the functions, as the model's template has them, and nothing else."""
    once = request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool)
    begin, end = (_marker(text, tokenizer) for text in (form.begin, form.end))
    if form.listed:
        more = "" if once else ' (", " call)*'
        start = f'{begin} "[" call{more} "]" {end}'
    else:
        start = f'{begin} "\\n"? call "\\n"? {end}'
        if not once:
            start = f'{start} ("\\n"? {start})*'
    rules = [f"start: {start}", "call: " + " | ".join(f"call_{n}" for n in range(len(request.forced_tools)))]
    for number, tool in enumerate(request.forced_tools):
        rules += _call(number, tool)
    return str(LLMatcher.grammar_from_lark("\n".join(rules)))


def _call(number: int, tool: Tool) -> list[str]:
    schema = {"type": "object", **(tool.function.parameters or {}), "x-guidance": JSON_STYLE}
    head = json.dumps(f'{{"name": {json.dumps(tool.function.name)}, "arguments": ')
    # Each schema is one by itself, so that what it refers to is found.
    return [
        f'call_{number}: {head} arguments_{number} "}}"',
        f"arguments_{number}: %json {json.dumps(schema)}",
    ]


def _marker(text: str, tokenizer: Tokenizer) -> str:
    """The text, which may be a token by itself."""
    if not text:
        return ""
    (token_id,) = tokenizer.ids_of([text]) or (None,)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"
