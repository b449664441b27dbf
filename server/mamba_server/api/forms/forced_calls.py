"""The grammar of tool calls that a model is forced to make, in the format of its chat template. Pure.

`output_grammar` uses it. In templates that write arguments as tags, a string is any text or one of an `enum`,
and all other values are JSON that follows their schema.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from llguidance import LLMatcher

from mamba_api.openai import ChatCompletionRequest
from mamba_api.openai_tools import INPUT, CustomGrammar, Tool
from mamba_server.api.forms.followed_schema import FormLimits, enforceable_schema
from mamba_text.tagged_call import SchemaTypes
from mamba_text.tokenizer import Tokenizer
from mamba_text.tool_calls import ToolCallFormat

_DEFINITIONS = ("$defs", "definitions")
_NOT_CHECKED = frozenset({"title", "description", "$schema", "examples", "default", "additionalProperties"})
"""Keys that demand nothing of a call in tags, which has no arguments other than those of `properties`."""


def forced_calls(
    request: ChatCompletionRequest, form: ToolCallFormat, tokenizer: Tokenizer, limits: FormLimits
) -> str:
    """Build llguidance's grammar of an answer that consists of calls of the forced tools alone.

    Raises ValueError if the schema of arguments cannot be followed.
    """
    once = request.parallel_tool_calls is False or request.names_one_tool
    begin, end = (token_or_text(text, tokenizer) for text in (form.begin, form.end))
    if form.listed:
        more = "" if once else ' (", " call)*'
        start = f'{begin} "[" call{more} "]" {end}'
    else:
        start = f'{begin} "\\n"? call "\\n"? {end}'
        if not once:
            start = f'{start} ("\\n"? {start})*'
    inputs: list[dict[str, Any]] = []
    rules = [f"start: {start}", "call: " + " | ".join(f"call_{n}" for n in range(len(request.forced_tools)))]
    for number, tool in enumerate(request.forced_tools):
        grammar = None if tool.custom is None else tool.custom.grammar
        if grammar is not None and form.tagged:
            first, *others = grammars_of(of_input(grammar))
            inputs += [{**first, "name": f"input_{number}"}, *others]
            rules.append(_tagged_input(number, tool))
        elif grammar is not None and grammar.syntax == "lark":
            limits.leave_out("format", strict=False)
            rules += _json_call(number, tool, limits)
        else:
            rules += (_tagged_call if form.tagged else _json_call)(number, tool, limits)
    if form.tagged:
        rules.append(r"text[lazy]: /(?s:.*)\n<\/parameter>\n/")
    calls = str(LLMatcher.grammar_from_lark("\n".join(rules)))
    return json.dumps({"grammars": grammars_of(calls) + inputs}) if inputs else calls


def of_input(grammar: CustomGrammar) -> str:
    """Return llguidance's grammar of a custom tool's input."""
    make = LLMatcher.grammar_from_regex if grammar.syntax == "regex" else LLMatcher.grammar_from_lark
    return str(make(grammar.definition))


def _tagged_input(number: int, tool: Tool) -> str:
    """Return the rule of a call of a custom tool whose input has its own grammar."""
    head = json.dumps(f"<function={tool.name}>\n<parameter={INPUT}>\n")
    end = json.dumps("\n</parameter>\n</function>")
    return f"call_{number}: {head} @input_{number} {end}"


def calls_or_form(form: str, calls: ToolCallFormat, tokenizer: Tokenizer, *, once: bool) -> str:
    """Return the grammar of an answer that either consists of unrestricted tool calls or follows `form`.

    `form` is a grammar; `once`: the answer has at most one call. Raises ValueError.
    """
    begin = token_or_text(calls.begin, tokenizer)
    if not calls.end:
        call = [f"call: {begin} rest", "rest: /(?s:.*)/"]
    else:
        end = token_or_text(calls.end, tokenizer)
        # A model may spell a marker in letters although it has a special token for it.
        inner = f"(inner | rest {end})" if end.startswith("<") else "inner"
        call = [f"call: {begin} {inner}", f"inner[lazy]: /(?s:.*){escape(calls.end)}/", "rest: /(?s:.*)/"]
    more = "" if once or calls.listed or not calls.end else " (blank call)*"
    rules = [f"start: call{more} | @form", *call, "blank: /\\n{0,2}/"]
    first, *others = grammars_of(form)
    grammars = [{"lark_grammar": "\n".join(rules)}, {**first, "name": "form"}, *others]
    return json.dumps({"grammars": grammars})


def escape(marker: str) -> str:
    """Return an expression that matches exactly this text."""
    return re.escape(marker).replace("/", "\\/")


def grammars_of(text: str) -> list[dict[str, Any]]:
    """Return the grammars of a text of llguidance: JSON with a list of grammars, or one grammar's text.

    Raises ValueError.
    """
    if not text.lstrip().startswith("{"):
        return [{"lark_grammar": text}]
    grammars = json.loads(text).get("grammars")
    if (
        not isinstance(grammars, list)
        or not grammars
        or not all(isinstance(grammar, dict) for grammar in grammars)
    ):
        raise ValueError("is JSON without a list of grammars")
    return grammars


def token_or_text(text: str, tokenizer: Tokenizer) -> str:
    """Return the grammar's symbol for a text: a token if one special token is the text, else a string."""
    if not text:
        return ""
    (token_id,) = tokenizer.ids_of([text]) or (None,)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def _json_call(number: int, tool: Tool, limits: FormLimits) -> list[str]:
    schema = {"type": "object", **parameters_of(tool, limits), "x-guidance": limits.style}
    head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "arguments": ')
    # Each schema is a grammar of its own, so that its references are resolved within it.
    return [
        f'call_{number}: {head} arguments_{number} "}}"',
        f"arguments_{number}: %json {json.dumps(schema)}",
    ]


def parameters_of(tool: Tool, limits: FormLimits) -> dict[str, Any]:
    """Return the part of the schema of a tool's arguments that a call is made to follow."""
    schema = tool.parameters
    if tool.custom is not None and tool.custom.grammar is not None and tool.custom.grammar.syntax == "regex":
        # An expression that cannot be followed is an error, because it is the requested form.
        pattern = {"type": "string", "pattern": f"^(?:{tool.custom.grammar.definition})$"}
        return {**schema, "properties": {INPUT: pattern}}
    return enforceable_schema(schema, limits, strict=tool.strict)


def _tagged_call(number: int, tool: Tool, limits: FormLimits) -> list[str]:
    schema = parameters_of(tool, limits)
    supported = {"type", "properties", "required", *_DEFINITIONS, *_NOT_CHECKED}
    if unsupported := sorted(set(schema) - supported):
        raise ValueError(
            f"{tool.name}: this model's tool calls do not support the key {unsupported[0]!r} in the schema "
            "of their arguments; leave it out"
        )
    if schema.get("type", "object") != "object":
        raise ValueError(f"{tool.name}: the arguments must be an object")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise ValueError(f"{tool.name}: 'properties' must be an object, and 'required' a list")
    rules: list[str] = []
    parts = []
    types = SchemaTypes(schema)
    for place, (key, value) in enumerate(properties.items()):
        name = f"argument_{number}_{place}"
        parts.append(name if key in required else f"{name}?")
        rules += _tagged_argument(name, key, value, schema, types.of(value), limits)
    head, end = json.dumps(f"<function={tool.name}>\n"), json.dumps("</function>")
    return [f"call_{number}: {' '.join([head, *parts, end])}", *rules]


def _tagged_argument(
    name: str, key: str, schema: Any, root: Mapping[str, Any], types: frozenset[str], limits: FormLimits
) -> Iterator[str]:
    head, end = json.dumps(f"<parameter={key}>\n"), json.dumps("\n</parameter>\n")
    if types and "string" not in types:
        yield f"{name}: {head} {name}_value {end}"
        shared = {keyword: root[keyword] for keyword in _DEFINITIONS if keyword in root}
        yield f"{name}_value: %json {json.dumps({**shared, **schema, 'x-guidance': limits.style})}"
    elif types == {"string"} and "enum" in schema:
        texts = schema["enum"] if isinstance(schema["enum"], list) else []
        texts = [text for text in texts if isinstance(text, str)]
        if not texts:
            raise ValueError(f"{key}: 'enum' of a string must be a list with at least one string")
        yield f"{name}: {head} ({' | '.join(map(json.dumps, texts))}) {end}"
    else:
        yield f"{name}: {head} text"
